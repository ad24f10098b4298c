"""Ask the host for something and wait for its answer (``submit.sh``, ``no_candidate.sh``).

A request is a file in /run/orch, written whole and then renamed. The host answers in
/logs/answers/<id>.json, where nothing in the container can write. Taking the request away again
says that the answer was read. On acceptance the host ends the container.
"""

import argparse
import json
import os
import secrets
import sys
import time
from pathlib import Path

_POLL_SECONDS = 0.1
_LONGEST_REASON = 8192  # characters: the host passes over a request that holds more


def parse(arguments: list[str]) -> dict[str, object]:
    """Turn the command line into a request without its id."""
    parser = argparse.ArgumentParser(prog=f"{arguments[0]}.sh")
    if arguments[0] == "submit":
        parser.add_argument("--allow-empty", action="store_true", help="submit without changes")
    else:
        what = "why there is nothing to hand in"
        parser.add_argument("reason", metavar="REASON", nargs="+", help=what)
    given = vars(parser.parse_args(arguments[1:]))
    # What is no text could not be read by the host either, and nobody would ever answer.
    reason = " ".join(given.pop("reason", ())).encode("utf-8", "replace").decode()[:_LONGEST_REASON]
    return {"action": arguments[0], "allow_empty": False, **given, "reason": reason}


def send(request: dict[str, object], folder: Path) -> None:
    """Write a request so that the host sees all of it or nothing."""
    unfinished = folder / f"request-{request['id']}.json.tmp"
    unfinished.write_text(json.dumps(request, ensure_ascii=False), encoding="utf-8")
    unfinished.rename(folder / f"request-{request['id']}.json")


def wait_for(answer: Path) -> dict[str, object]:
    """Wait for the host. There is no limit of our own: the host's deadline is the limit."""
    while not answer.is_file():
        time.sleep(_POLL_SECONDS)
    found: dict[str, object] = json.loads(answer.read_text(encoding="utf-8"))
    return found


def main() -> int:
    """Send one request and say what the host made of it; 0 if it was accepted."""
    request = parse(sys.argv[1:]) | {"id": secrets.token_hex(16)}
    requests = Path(os.environ.get("ORCH_REQUESTS_DIR", "/run/orch"))
    send(request, requests)
    print("sent; waiting for the host", flush=True)
    logs = Path(os.environ.get("ORCH_LOGS_DIR", "/logs"))
    answer = wait_for(logs / "answers" / f"{request['id']}.json")
    print(answer["message"])
    for name in ("violations", "left_out"):
        for item in answer.get(name) or ():
            print("  " + (item.get("text") or f"{name.replace('_', ' ')}: {json.dumps(item)}"))
    sys.stdout.flush()
    (requests / f"request-{request['id']}.json").unlink(missing_ok=True)
    return 0 if answer["accepted"] else 1


if __name__ == "__main__":
    sys.exit(main())
