"""How often the audit's checks are right: ``python -m tests.audit.figures`` prints a table.

A check that passes where it should is a true positive. Precision is the share of passes that are
right, recall the share of what should pass that does.
"""

from collections.abc import Iterable, Iterator

from tests.audit.evaluator import code_checks, text_checks
from tests.audit.mutants import mutants
from tests.audit.scripts import SETS, read, texts, works

HEADINGS = "| set | check | cases | precision | recall |\n|---|---|---|---|---|"


def row(name: str, check: str, pairs: Iterable[tuple[bool, bool]]) -> str:
    """Write one line: ``pairs`` hold what should be and what was said."""
    listed = list(pairs)
    said = [truth for truth, found in listed if found]
    true = [found for truth, found in listed if truth]
    shares = (f"{sum(one)}/{len(one)}" for one in (said, true))
    return f"| {name} | {check} | {len(listed)} | {' | '.join(shares)} |"


def lines() -> Iterator[str]:
    """Write every line of the table."""
    for name in SETS:
        judged = [(one.truth, code_checks.check(one.code)) for one in read(name)]
        for check in code_checks.NAMES:
            yield row(name, check, ((truth[check], found[check]) for truth, found in judged))
        for check in text_checks.NAMES if texts(name) else ():
            yield row(
                name,
                check,
                (
                    (passes, text_checks.check(case, text)[check] >= text_checks.PASSES)
                    for case, of, passes, text in texts(name)
                    if of == check
                ),
            )
    yield row("mutants", "all four of code", _mutants())


def _mutants() -> Iterator[tuple[bool, bool]]:
    """Compare what all checks of code say of each mutant with whether it works."""
    for name in SETS:
        for script in read(name):
            changed = mutants(script.code) if len(works()[name, script.name]) > 1 else []
            for truth, one in zip(works()[name, script.name][1:], changed, strict=True):
                yield truth == "1", all(code_checks.check(one.code).values())


if __name__ == "__main__":
    print(HEADINGS)
    print("\n".join(lines()))
