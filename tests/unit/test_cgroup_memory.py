from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.adapters.cgroup_memory import UNREADABLE, memory_of
from orchestrator.ports import MemoryUse

_ID = "c0ffee"
_LIMIT = 64 * 1024**2


def _host(root: Path, lines: str, files: Mapping[str, str]) -> Path:
    (root / "proc/7").mkdir(parents=True)
    (root / "proc/7/cgroup").write_text(lines)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def _version_1(root: Path, *, failures: int, peak: int) -> Path:
    group = f"memory/docker/{_ID}"
    return _host(
        root,
        f"9:memory:/docker/{_ID}\n1:name=systemd:/docker/{_ID}\n",
        {
            f"{group}/memory.max_usage_in_bytes": f"{peak}\n",
            f"{group}/memory.limit_in_bytes": f"{_LIMIT}\n",
            f"{group}/memory.failcnt": f"{failures}\n",
        },
    )


@pytest.mark.parametrize(
    ("failures", "peak", "reached"),
    [(0, _LIMIT - 4096, 0), (0, _LIMIT, 1), (3, _LIMIT, 3), (3, _LIMIT - 4096, 3)],
)
def test_version_1_limit_is_reached_by_count_or_by_peak(
    tmp_path: Path, failures: int, peak: int, reached: int
) -> None:
    root = _version_1(tmp_path, failures=failures, peak=peak)
    assert memory_of(7, _ID, root) == MemoryUse(peak=peak, limit_reached=reached)


def test_version_2_counts_hits_of_the_limit(tmp_path: Path) -> None:
    group = f"system.slice/docker-{_ID}.scope"
    files = {
        f"{group}/memory.peak": "5\n",
        f"{group}/memory.events": "low 0\nhigh 0\nmax 2\noom 1\noom_kill 1\n",
    }
    root = _host(tmp_path, f"0::/{group}\n", files)
    assert memory_of(7, _ID, root) == MemoryUse(peak=5, limit_reached=2)


def test_nobody_elses_counters_are_read(tmp_path: Path) -> None:
    root = _version_1(tmp_path, failures=1, peak=1)
    assert memory_of(7, "another", root) == UNREADABLE
    assert memory_of(8, _ID, root) == UNREADABLE
