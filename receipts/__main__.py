"""``python -m receipts verify DIR``: check receipts offline, without the rest of orch."""

import argparse
import json
import sys
from pathlib import Path

from receipts.errors import KeyUnusableError
from receipts.keys import load_public
from receipts.reading import look_into
from receipts.verify import verify
from receipts.verify_model import Wanted
from receipts.verify_report import document, lines

_USAGE = 64


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 0, 1 on a finding, 3 when unauthenticated, 64 on a bad argument."""
    parser = argparse.ArgumentParser(prog="python -m receipts")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("verify", help="check every receipt under a folder")
    command.add_argument("folder", type=Path, help="a runs folder, a config or one run of it")
    command.add_argument("--key", type=Path, action="append", default=[], help="a trusted PEM")
    command.add_argument("--task", help="the task digest that was to be measured")
    command.add_argument(
        "--campaign", action="store_true", help="check that nothing registered is missing"
    )
    command.add_argument("--campaign-head", help="a published head of the campaign log")
    command.add_argument("--deep", action="store_true", help="hash the assets again")
    command.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    try:
        look_into(options.folder)
    except OSError as error:
        print(f"{options.folder}: {error.strerror}", file=sys.stderr)
        return _USAGE
    try:
        keys = tuple(load_public(path) for path in options.key)
    except KeyUnusableError as error:
        print(error, file=sys.stderr)
        return _USAGE
    report = verify(
        options.folder,
        Wanted(
            keys=keys,
            task=options.task,
            campaign_head=options.campaign_head,
            whole_campaign=options.campaign,
            deep=options.deep,
        ),
    )
    if options.json:
        print(json.dumps(document(report), indent=2))
    else:
        print("\n".join(lines(report)))
    return report.verdict


if __name__ == "__main__":
    sys.exit(main())
