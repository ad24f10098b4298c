"""One file per agent, found through entry points."""
