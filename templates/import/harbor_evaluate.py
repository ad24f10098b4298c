"""Run a Harbor task's tests over what a candidate published, and hand on the rewards.

Reads ``source.json`` beside it: ``workdir``, where the published files go, as they lay when the
agent was done. The tests are asset ``data/tests`` and are run from ``/tests``, as Harbor does;
what they leave in /logs/verifier, ``reward.json`` or else ``reward.txt``, is the result. Without
a finite reward it is a failure of the tests, whatever they exited with.
"""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

OUT = Path("/out")
CHECKPOINT = Path("/ckpt")
TESTS = Path("/tests")
REWARDS = Path("/logs/verifier")
ASSET = Path("/assets/data/tests")


def rewards(folder: Path) -> dict[str, float]:
    """Read what the tests left.

    Raises:
        ValueError: it is none.
    """
    if (written := folder / "reward.json").is_file():
        said: Any = json.loads(written.read_text(encoding="utf-8"))
    else:
        said = {"reward": float((folder / "reward.txt").read_text(encoding="utf-8"))}
    if not isinstance(said, dict):
        said = {"reward": said}
    for name, value in said.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value):
            raise ValueError(f"{name} is no finite number")
    if "reward" not in said:
        raise ValueError("no reward is called 'reward'")
    return {name: float(value) for name, value in said.items()}


def main() -> int:
    """Judge one published state."""
    source = json.loads(Path(__file__).with_name("source.json").read_text(encoding="utf-8"))
    workdir = Path(source["workdir"])
    shutil.copytree(CHECKPOINT, workdir, symlinks=True, dirs_exist_ok=True)
    shutil.copytree(ASSET, TESTS, symlinks=True, dirs_exist_ok=True)
    code = subprocess.run(["bash", str(TESTS / "test.sh")], cwd=workdir, check=False).returncode
    try:
        metrics = rewards(REWARDS)
    except (OSError, ValueError) as fault:
        print(f"the tests exited with {code} and left no reward: {fault}", file=sys.stderr)
        return 1
    said = {"status": "scored", "metrics": metrics}
    (OUT / "summary.json").write_text(json.dumps(said), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
