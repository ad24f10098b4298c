"""orch: a sandboxed runner for AI agents on machine-learning research tasks, with formal replay."""

__version__ = "0.1.0"
