"""Files and JSON that somebody else may have written, taken strictly."""

import errno
import hashlib
import json
import math
import os
import stat
from pathlib import Path
from typing import Any

from receipts.errors import MalformedError


def read_file(path: Path, *, max_bytes: int) -> bytes:
    """Read a regular file, never through a link at its last part.

    Raises:
        FileNotFoundError: it does not exist.
        MalformedError: it is no regular file, or larger than ``max_bytes``.
    """
    with os.fdopen(_opened(path), "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise MalformedError(f"{path}: larger than {max_bytes} bytes")
    return data


def hash_file(path: Path) -> str:
    """Hash a regular file of any size, never through a link at its last part: hexadecimal digits.

    Raises:
        FileNotFoundError: it does not exist.
        MalformedError: it is no regular file.
    """
    with os.fdopen(_opened(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def look_into(folder: Path) -> None:
    """Make sure that a folder can be listed, and what it holds be asked for.

    Raises:
        OSError: it is none, or this user may not.
    """
    os.scandir(folder).close()
    os.stat(os.path.join(folder, "."))  # noqa: PTH116, PTH118 - a Path would drop the dot


def _opened(path: Path) -> int:
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:
            raise MalformedError(f"{path}: not a regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise MalformedError(f"{path}: not a regular file")
    return descriptor


def parse_json(data: bytes) -> Any:
    """Parse strict JSON: UTF-8, no key twice, no lone surrogate, no NaN and no infinity.

    A number that overflows to infinity, such as ``1e999``, is refused too.

    Raises:
        MalformedError: it is not that; the message says what is wrong and where.
    """
    try:
        text = data.decode()
        value = json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_float=_finite,
            parse_constant=_no_constant,
        )
        if "\\u" in text:
            # An escaped lone surrogate decodes, but could never be written again.
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"not strict JSON: {error}") from error
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"key {key!r} twice")
        result[key] = value
    return result


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"number {text} is out of range")
    return value


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number of JSON")
