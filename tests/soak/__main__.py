"""``python -m tests.soak [--minutes N]``: soak, print what grew, exit 1 where it was too much."""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.gauge import table
from tests.soak.soak import Soak

_TELL_EVERY = 60.0


class Teller:
    """Prints a line of progress a minute."""

    def __init__(self) -> None:
        self._next = time.monotonic()
        self._began = self._next

    def say(self, line: str) -> None:
        """Print ``line``, unless the last one is too young and this is not the last of all."""
        now = time.monotonic()
        if now >= self._next or line.endswith("in all"):
            self._next = now + _TELL_EVERY
            print(f"{(now - self._began) / 60:5.1f} min: {line}", flush=True)


def main() -> int:
    """Soak in a folder that stays where something went wrong."""
    parser = argparse.ArgumentParser(prog="tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    minutes = parser.parse_args().minutes
    root = Path(tempfile.mkdtemp(prefix="orch-soak-"))
    checks = Soak(root, minutes * 60, Teller().say).run()
    print(table(checks))
    if not all(check.held for check in checks):
        print(f"what it did is in {root}")
        return 1
    shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
