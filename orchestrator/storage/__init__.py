"""What is on disk: where each file lies, and how it is written so that nothing is half there."""
