"""Run baselines of mls_unlearning through the formal pipeline, and print the table of its runs.

``mls_baselines.py [TASK [NAME...]]``: TASK as orch takes it, by default the digits; all baselines
unless some are named. Each is entered as a patch of the shipped ``bench/custom.py``.
"""

import json
import subprocess
import sys
import tempfile
from difflib import unified_diff
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACK = ROOT / "tasks/mls_unlearning"
EDITED = "bench/custom.py"


def patch_of(name: str) -> str:
    """Write a baseline as a patch of the solution."""
    files = (PACK / "solution" / EDITED, PACK / "baselines" / f"{name}.py")
    old, new = (file.read_text(encoding="utf-8").splitlines(keepends=True) for file in files)
    heading = f"diff --git a/{EDITED} b/{EDITED}\n"
    return heading + "".join(unified_diff(old, new, f"a/{EDITED}", f"b/{EDITED}"))


def orch(*words: str, quiet: bool = False) -> str:
    """Run orch, which has to succeed; return what it printed if ``quiet``, else show it."""
    command = [sys.executable, "-m", "orchestrator", *words]
    print("$ orch", *words, file=sys.stderr, flush=True)
    output = subprocess.PIPE if quiet else None
    return subprocess.run(command, check=True, cwd=ROOT, stdout=output, text=True).stdout or ""


def main(task: str = "mls_unlearning", *names: str) -> None:
    """Enter, replay and score each baseline; then compare."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names or sorted(path.stem for path in (PACK / "baselines").glob("*.py")):
            patch = Path(folder) / f"{name}.patch"
            patch.write_text(patch_of(name), encoding="utf-8")
            entered = json.loads(orch("submit-patch", task, str(patch), "--json", quiet=True))
            orch("replay", entered[0]["id"])
    orch("compare", task)


if __name__ == "__main__":
    main(*sys.argv[1:])
