"""Read a runs folder as a person would, in one process: ``python -m tests.faults.reader RUN``."""

import sys

from orchestrator.cli.app import run

if __name__ == "__main__":
    (place,) = sys.argv[1:]
    for words in (["status", "--json"], ["show", place, "--json"], ["lifecycle", place]):
        code = run(words)
        if code != 0:
            sys.exit(int(code))
