"""Run the task's own loading check, which lies in the image, and hand on its verdict.

Reads ``source.json`` beside it: ``argv``, and the ``kind`` and ``payload`` of a checkpoint, whose
form is checked first, as AI4AI-Bench does: a ``file`` is not empty, ``weights`` is a folder that
holds some, a ``model`` has its configuration as well.
"""

import json
import subprocess
import sys
from pathlib import Path

OUT = Path("/out")
CHECKPOINT = Path("/ckpt")
WORKSPACE = Path("/workspace")
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.index.json")
CONFIGURATION = ("config.json", "adapter_config.json")
DETAIL = 500


def is_whole(kind: str, payload: Path) -> bool:
    """Tell whether a checkpoint has the form that its kind promises."""
    if kind == "file":
        return payload.is_file() and payload.stat().st_size > 0
    if not payload.is_dir():
        return False
    files = [file for pattern in WEIGHTS for file in payload.glob(pattern)]
    if not any(file.is_file() and file.stat().st_size > 0 for file in files):
        return False
    return kind == "weights" or any((payload / name).is_file() for name in CONFIGURATION)


def verdict(reason: str = "", detail: str = "") -> int:
    """Write what orch reads; without a reason the checkpoint is valid."""
    said = {"valid": not reason, "reason": reason, "detail": detail[:DETAIL]}
    (OUT / "validation.json").write_text(json.dumps(said), encoding="utf-8")
    return 0


def main() -> int:
    """Judge one checkpoint."""
    source = json.loads(Path(__file__).with_name("source.json").read_text(encoding="utf-8"))
    payload = CHECKPOINT / source["payload"]
    if not is_whole(source["kind"], payload):
        return verdict("incomplete", f"{payload} is no {source['kind']}")
    workdir = WORKSPACE if WORKSPACE.is_dir() else OUT
    code = subprocess.run(source["argv"], cwd=workdir, check=False).returncode
    written = OUT / "validation.json"
    try:
        said = json.loads(written.read_text(encoding="utf-8"))
        status = said["status"]
    except (OSError, ValueError, LookupError, TypeError) as fault:
        print(f"the validator exited with {code}, its verdict is none: {fault}", file=sys.stderr)
        return 1
    written.rename(OUT / "source-validation.json")
    if code != 0 or status not in {"valid", "invalid"}:
        print(f"the validator exited with {code}, its verdict is {status!r}", file=sys.stderr)
        return 1
    if status == "valid":
        return verdict()
    return verdict("not_loadable", str(said.get("reason", "")))


if __name__ == "__main__":
    sys.exit(main())
