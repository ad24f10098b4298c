"""The scripts that the audit's checks are tried on, and what is true of each.

``seen`` are those that the checks were made with. ``held_back`` were written before the checks
were, and looked at once, when they were done. ``later`` are longer ones, written afterwards in the
manner of models. ``truth.json`` says by hand what each does;
``works.txt`` says by running it (``truth.py``) whether it and its mutants work.
"""

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACK = Path(__file__).parents[2] / "tasks/unlearning_security_audit"
DATA = Path(__file__).parents[1] / "data/audit_scripts"
SETS = ("seen", "held_back", "later")


class Script(NamedTuple):
    """One script. ``truth`` holds what each check of code should come to."""

    name: str
    code: str
    truth: dict[str, bool]


def read(name: str) -> list[Script]:
    """Read one set."""
    truth = json.loads((DATA / name / "truth.json").read_text())
    return [
        Script(
            script, (DATA / name / f"{script}.py").read_text(), {k: v == 1 for k, v in t.items()}
        )
        for script, t in truth.items()
    ]


@cache
def works() -> dict[tuple[str, str], str]:
    """Read what running everything came to: by set and script a 1 or 0 for it and its mutants."""
    lines = (DATA / "works.txt").read_text().splitlines()
    return {(line.split()[0], line.split()[1]): line.split()[2] for line in lines}


def texts(name: str) -> list[tuple[str, str, bool, str]]:
    """Read sentences: the case, the check, whether it passes, and what is said."""
    rows = json.loads((DATA / name / "texts.json").read_text())
    return [(case, check, passes == 1, text) for case, check, passes, text in rows]
