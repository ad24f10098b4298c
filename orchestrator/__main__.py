"""``python -m orchestrator`` is ``orch``."""

from orchestrator.cli.app import main

main()
