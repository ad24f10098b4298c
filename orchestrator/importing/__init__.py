"""Tasks from elsewhere, read without being run, as packs of orch's own."""
