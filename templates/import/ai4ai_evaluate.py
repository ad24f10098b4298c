"""Run the task's own evaluator, which lies in the image, and hand on its numbers.

Reads ``source.json`` beside it: ``argv``, and the ``metric`` that its summary has to be about. An
AI4AI-Bench evaluator says ``score``, and ``status`` unless all is well; of all else that it says
only numbers go on, each under the names that lead to it, and no seeds. What is neither a score nor
a refusal is a failure of the evaluator, whatever it exited with.
"""

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

OUT = Path("/out")
WORKSPACE = Path("/workspace")
REFUSED = {"invalid", "rejected"}
FAILED = {"error", "failed", "incomplete"}
WORD = re.compile(r"[A-Za-z0-9_.:@/-]{1,64}")
DEPTH = 4
MOST = 500
"""Numbers that are handed on."""


def numbers(said: Any, prefix: str = "", depth: int = 0) -> list[tuple[int, str, float]]:
    """Collect the finite numbers of nested objects as (depth, dotted name, value)."""
    if isinstance(said, bool) or depth > DEPTH:
        return []
    if isinstance(said, (int, float)):
        named = WORD.fullmatch(prefix) and math.isfinite(said)
        return [(depth, prefix, float(said))] if named else []
    if not isinstance(said, dict):
        return []
    found: list[tuple[int, str, float]] = []
    for key, value in said.items():
        if "seed" in str(key).lower():
            continue  # it may be all that hides generated final data
        found += numbers(value, f"{prefix}.{key}" if prefix else str(key), depth + 1)
    return found


def ours(said: Any, metric: str) -> dict[str, Any] | None:
    """Turn a summary into what orch reads; None where it is no ending."""
    if not isinstance(said, dict) or said.get("metric") != metric:
        return None
    status = str(said.get("status", "valid"))
    if status in REFUSED:
        return {"status": "invalid", "reason": status}
    score = said.get("score")
    is_number = isinstance(score, (int, float)) and not isinstance(score, bool)
    if status in FAILED or not is_number or not math.isfinite(score):
        return None
    found = sorted(numbers(said))[:MOST]
    metrics = {name: value for _, name, value in found}
    return {"status": "scored", "metrics": {**metrics, metric: float(score)}}


def main() -> int:
    """Run the evaluator once."""
    source = json.loads(Path(__file__).with_name("source.json").read_text(encoding="utf-8"))
    workdir = WORKSPACE if WORKSPACE.is_dir() else OUT
    code = subprocess.run(source["argv"], cwd=workdir, check=False).returncode
    summary = OUT / "summary.json"
    try:
        said = json.loads(summary.read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        print(f"the evaluator exited with {code}, its summary is no JSON: {fault}", file=sys.stderr)
        return 1
    summary.rename(OUT / "source-summary.json")
    found = ours(said, source["metric"])
    if found is None:
        print(f"the evaluator exited with {code} and neither scored nor refused", file=sys.stderr)
        return 1
    summary.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
