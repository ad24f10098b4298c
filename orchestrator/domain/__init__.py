"""Frozen types and pure rules. Nothing here reads a file, a clock or the environment."""
