"""The three state machines, pure: ``state = fold(journal)``, never stored beside it."""
