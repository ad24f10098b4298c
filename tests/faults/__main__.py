"""The fault campaign: ``python -m tests.faults [--only CASE]... [--fault F]... [--kind K]...``.

Runs the digits pipeline against the real engine and injects every fault at every journal event of
every phase, and while each container runs; starts ``orch`` again as a person would; and checks what
must hold. Prints a table; exit 1 when anything failed. Needs root, an engine and the images.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.config import Settings
from orchestrator.domain.attempt import RunKind
from orchestrator.errors import Exit
from tests.faults.bench import Bench, Result
from tests.faults.eye import Eye
from tests.faults.points import SAYS, Case, Fault, Point, read_case
from tests.faults.trial import Verdict, judge, story_of

_AT_ONCE = 2


@contextmanager
def prepared() -> Iterator[tuple[Bench, Eye, Result]]:
    """Make what every case starts from; keep it when something failed in there."""
    root = Path(tempfile.mkdtemp(prefix="of-"))
    eye = Eye()
    try:
        bench = Bench(root, str(Settings.from_environment().assets))
        yield bench, eye, bench.prepare()
    finally:
        eye.close()
        if not any(root.glob("c*/kept")):
            shutil.rmtree(root)


def campaign(bench: Bench, eye: Eye, result: Result, cases: Sequence[Case]) -> Iterator[Verdict]:
    """Judge every case, two at a time."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        waiting = [pool.submit(judge, bench, eye, result, case) for case in cases]
        try:
            for done in as_completed(waiting):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)  # those that run come to their end and tidy up


def every_case(points: Sequence[Point]) -> list[Case]:
    """Cross all faults with all points that a run passes."""
    return [Case(fault, point) for fault in Fault for point in points]


def table(verdicts: Sequence[Verdict]) -> str:
    """Lay out how many cases of each fault and phase held."""
    counts: dict[tuple[Fault, RunKind], list[bool]] = defaultdict(list)
    for verdict in verdicts:
        counts[verdict.case.fault, verdict.case.point.kind].append(not verdict.problems)
    kinds = tuple(RunKind)
    lines = [f"| fault | {' | '.join(kinds)} |", f"|---|{'---|' * len(kinds)}"]
    for fault in Fault:
        if any((fault, kind) in counts for kind in kinds):
            cells = (counts.get((fault, kind), []) for kind in kinds)
            told = " | ".join(f"{sum(cell)}/{len(cell)}" if cell else "-" for cell in cells)
            lines.append(f"| {SAYS[fault]} | {told} |")
    return "\n".join(lines)


def _tell(verdict: Verdict, count: str) -> None:
    if verdict.problems:
        print(story_of(verdict))
    word = "FAILED" if verdict.problems else "held"
    print(f"{count} {word} {verdict.seconds:.1f} s {verdict.case}", flush=True)


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", action="append", type=read_case, metavar="CASE")
    parser.add_argument("--fault", action="append", type=Fault, metavar="FAULT")
    parser.add_argument("--kind", action="append", type=RunKind, metavar="KIND")
    asked = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("the campaign fills disks and mounts volumes: run it as root")
    began = time.monotonic()
    verdicts: list[Verdict] = []
    stopped = True
    with prepared() as (bench, eye, result), suppress(KeyboardInterrupt):
        cases = asked.only or [
            case
            for case in every_case(result.points)
            if (not asked.fault or case.fault in asked.fault)
            and (not asked.kind or case.point.kind in asked.kind)
        ]
        for verdict in campaign(bench, eye, result, cases):
            verdicts.append(verdict)
            _tell(verdict, f"{len(verdicts)}/{len(cases)}")
        stopped = False
    failed = [verdict for verdict in verdicts if verdict.problems]
    print(f"\n{table(verdicts)}\n")
    took = time.monotonic() - began
    print(f"{len(verdicts) - len(failed)} of {len(verdicts)} cases held, in {took:.0f} s")
    for verdict in failed:
        print(f"reproduce: python -m tests.faults --only '{verdict.case}'")
    return Exit.INTERRUPTED if stopped else int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
