"""Judge whether a checkpoint of answers is whole: texts, and weights like the anchor's.

Runs in the validate container. It reads /ckpt and the anchor in $ORCH_ANCHOR, and writes
/out/validation.json. Nothing is unpickled, and no code of an answer is run or parsed.
"""

import json
import os
import re
from pathlib import Path

import numpy as np

_TEXT = re.compile(r"answers/[a-z][a-z0-9_]{0,31}/[1-9][0-9]?\.md")
_WEIGHTS = re.compile(r"weights/[a-z][a-z0-9_]{0,31}/[1-9][0-9]?\.npy")
_RUNS = "runs.json"
MAX_FILES, MAX_SIZE = 1000, 64 * 1024


class Invalid(Exception):  # noqa: N818 - a verdict, not an error
    """The checkpoint is not acceptable: ``reason`` is a slug, ``detail`` says where."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def check(checkpoint: Path, shape: tuple[int, ...]) -> int:
    """Judge a checkpoint; return how many weights it holds.

    Raises:
        Invalid: it is not acceptable.
    """
    count = 0
    for number, path in enumerate(sorted(checkpoint.rglob("*"))):
        name = path.relative_to(checkpoint).as_posix()
        if number > MAX_FILES:
            raise Invalid("unexpected_file", f"more than {MAX_FILES} files")
        if path.is_dir() and not path.is_symlink():
            continue
        if path.is_symlink() or not path.is_file():
            raise Invalid("unexpected_file", f"{name}: not a regular file")
        if path.stat().st_size > MAX_SIZE:
            raise Invalid("too_large", f"{name}: over {MAX_SIZE} bytes")
        if _WEIGHTS.fullmatch(name):
            _check_weights(path, name, shape)
            count += 1
        elif name != _RUNS and not _TEXT.fullmatch(name):
            raise Invalid("unexpected_file", f"{name}: neither an answer nor its weights")
    if not (checkpoint / _RUNS).is_file():
        raise Invalid("missing_runs", f"{_RUNS}: not in the checkpoint")
    return count


def _check_weights(path: Path, name: str, shape: tuple[int, ...]) -> None:
    try:
        weights = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as damage:
        raise Invalid("corrupt_file", f"{name}: {damage}") from damage
    if not isinstance(weights, np.ndarray) or weights.dtype != np.dtype("<f8"):
        raise Invalid("dtype_mismatch", f"{name}: not an array of 64-bit numbers")
    if weights.shape != shape:
        raise Invalid("shape_mismatch", f"{name}: {weights.shape}, the anchor has {shape}")
    if not np.isfinite(weights).all():
        raise Invalid("nonfinite", f"{name}: holds NaN or an infinity")


def main() -> None:
    """Write the verdict."""
    checkpoint = Path(os.environ.get("ORCH_CHECKPOINT_DIR", "/ckpt"))
    out = Path(os.environ.get("OUTPUT_DIR", "/out"))
    anchor = np.load(Path(os.environ["ORCH_ANCHOR"]) / "weights.npy", allow_pickle=False)
    reason, detail, count = "", "", 0
    try:
        count = check(checkpoint, anchor.shape)
    except Invalid as verdict:
        reason, detail = verdict.reason, str(verdict)[:500]
    record = {
        "valid": not reason,
        "reason": reason,
        "detail": detail,
        "arrays": count,
        "parameters": count * anchor.size,
    }
    (out / "validation.json").write_text(json.dumps(record) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
