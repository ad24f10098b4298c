"""Durations, sizes and counts as people write and read them: ``4h``, ``256KiB``, ``20M``."""

import re
from typing import Annotated

from pydantic import BeforeValidator

_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {
    "": 1,
    "b": 1,
    "k": 1024,
    "m": 1024**2,
    "g": 1024**3,
    "t": 1024**4,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
}
_COUNTS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3}
_MOST = 2.0**63
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def _parse(value: object, units: dict[str, float] | dict[str, int], what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"expected {what}, got {value!r}")  # noqa: TRY004 - pydantic wants it
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        if match is None or match.group(2).lower() not in units:
            known = ", ".join(unit for unit in units if unit)
            raise ValueError(f"{value!r} is not {what}: a number with one of {known}")
        value = float(match.group(1)) * units[match.group(2).lower()]
    if not abs(value) <= _MOST:
        raise ValueError(f"beyond what can be {what}")
    return value


def seconds(value: object) -> float:
    """Parse a duration such as ``90``, ``"15m"`` or ``"12h"`` into seconds."""
    return float(_parse(value, _SECONDS, "a duration"))


def size(value: object) -> int:
    """Parse a size such as ``"2g"`` or ``"256KiB"`` into bytes (``k m g t`` are binary)."""
    return int(_parse(value, _BYTES, "a size"))


def count(value: object) -> int:
    """Parse a count such as ``"20M"`` (``k M G`` are decimal)."""
    return int(_parse(value, _COUNTS, "a count"))


def human(size: int) -> str:
    """Write bytes for people: ``1.5 GiB``."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:  # noqa: PLR2004 - the step of binary units
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


def cpu_list(cpus: tuple[int, ...]) -> str:
    """Write CPU numbers as the kernel does: ``(0, 1, 4)`` is ``0-1,4``."""
    runs: list[tuple[int, int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1] = (runs[-1][0], cpu)
        else:
            runs.append((cpu, cpu))
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


Seconds = Annotated[float, BeforeValidator(seconds)]
Bytes = Annotated[int, BeforeValidator(size)]
Count = Annotated[int, BeforeValidator(count)]
