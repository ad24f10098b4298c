"""``python -m receipts verify DIR``: check receipts offline, without the rest of orch."""

import argparse
import sys
from pathlib import Path

from receipts.errors import KeyUnusableError
from receipts.keys import load_public
from receipts.verify import STEPS, Report, Verdict, verify

_USAGE = 64
_WORDS = {
    Verdict.AUTHENTIC: "consistent and signed by the given keys",
    Verdict.FINDING: "FINDING: does not hold",
    Verdict.UNAUTHENTICATED: "consistent, unauthenticated (give --key and --task DIGEST)",
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 0, 1 on a finding, 3 on "consistent, unauthenticated"."""
    parser = argparse.ArgumentParser(prog="python -m receipts")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("verify", help="check every receipt under a folder")
    command.add_argument("folder", type=Path, help="a runs folder, a config or one run of it")
    command.add_argument("--key", type=Path, action="append", default=[], help="a trusted PEM")
    command.add_argument("--task", help="the task digest that was to be measured")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        print(f"{options.folder}: not a folder", file=sys.stderr)
        return _USAGE
    try:
        keys = [load_public(path) for path in options.key]
    except KeyUnusableError as error:
        print(error, file=sys.stderr)
        return _USAGE
    report = verify(options.folder, keys, options.task)
    show(report)
    return report.verdict


def show(report: Report) -> None:
    """Print what each step came to, the notes and the verdict."""
    print(f"{report.receipts} receipts of {report.runs} runs")
    for number, step in enumerate(STEPS, start=1):
        faults = [fault for fault in report.faults if fault.step == step]
        print(f"{number}. {step}: {f'{len(faults)} faults' if faults else 'holds'}")
        for fault in faults:
            print(ascii_only(f"   {fault.where}: {fault.what}"))
    for note in report.notes:
        print(ascii_only(f"note: {note}"))
    print("selection not excluded: no published campaign head was compared")
    print(f"verdict: {_WORDS[report.verdict]}")


def ascii_only(text: str) -> str:
    """Escape what could steer a terminal: file names and fields are not ours."""
    return text.encode("ascii", "backslashreplace").decode().translate(_CONTROLS)


_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), 127)}


if __name__ == "__main__":
    sys.exit(main())
