"""Signs that the host itself gives beside a container; below the bar of a verdict."""

from pathlib import Path


def host_oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int | None:
    """Read how many processes the kernel's OOM killer has ended since boot; None if unreadable."""
    try:
        rows = vmstat.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = (row.split()[1] for row in rows if row.startswith("oom_kill "))
    value = next(found, None)
    return None if value is None else int(value)
