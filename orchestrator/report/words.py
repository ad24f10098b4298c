"""How figures are written for people: durations, digests, scores, times."""

from datetime import UTC, datetime

_MINUTE = 60
_HOUR = 3600
_DAY = 86400
_SHORT = 12


def duration(seconds: float) -> str:
    """Write a duration: ``0.4 s``, ``42 s``, ``12 min 03 s``, ``3 h 07 min``, ``2 d 04 h``."""
    if seconds < 10:  # noqa: PLR2004 - below ten seconds the tenth matters
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE:02d} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE:02d} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR:02d} h"


def elapsed(seconds: float) -> str:
    """Write time since a beginning: ``+0:00:12.3``."""
    tenths = max(round(seconds * 10), 0)
    whole, tenth = divmod(tenths, 10)
    return f"+{whole // _HOUR}:{whole % _HOUR // _MINUTE:02d}:{whole % _MINUTE:02d}.{tenth}"


def short_digest(digest: str) -> str:
    """Shorten ``recipe:sha256:abc...`` to the first twelve digits of its hash."""
    return digest.rpartition(":")[2][:_SHORT]


def figure(value: float | None) -> str:
    """Write a score or a component; None is a dash."""
    return "-" if value is None else f"{value:.6f}".rstrip("0").rstrip(".")


def moment(timestamp: str) -> datetime | None:
    """Read a recorded time (RFC 3339) as aware UTC; None when it is not one."""
    try:
        found = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


def utc(timestamp: str) -> str:
    """Write a recorded time to the second; what is no time stays as it is."""
    found = moment(timestamp)
    return f"{found:%Y-%m-%d %H:%M:%S} UTC" if found else timestamp


def count(number: int, noun: str) -> str:
    """Write ``1 file`` or ``3 files``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
