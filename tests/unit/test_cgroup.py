import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.adapters.background import in_background
from orchestrator.adapters.cgroup import ContainerGroup, group_of
from orchestrator.ports import ContainerProcess, ContainerUse, MemoryUse

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


def _group(root: Path) -> ContainerGroup:
    found = group_of(7, _ID, root)
    assert found is not None
    return found


def _version_1(root: Path, *, failures: int, peak: int) -> Path:
    group = f"memory/docker/{_ID}"
    return _host(
        root,
        f"9:memory:/docker/{_ID}\n1:name=systemd:/docker/{_ID}\n",
        {
            f"{group}/memory.max_usage_in_bytes": f"{peak}\n",
            f"{group}/memory.limit_in_bytes": f"{_LIMIT}\n",
            f"{group}/memory.failcnt": f"{failures}\n",
            f"{group}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
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
    assert _group(root).memory() == MemoryUse(peak=peak, limit_reached=reached, oom_kills=4)


def test_version_2_counts_hits_of_the_limit(tmp_path: Path) -> None:
    group = f"system.slice/docker-{_ID}.scope"
    files = {
        f"{group}/memory.peak": "5\n",
        f"{group}/memory.events": "low 0\nhigh 0\nmax 2\noom 1\noom_kill 1\n",
    }
    root = _host(tmp_path, f"0::/{group}\n", files)
    assert _group(root).memory() == MemoryUse(peak=5, limit_reached=2, oom_kills=1)


def test_nobody_elses_counters_are_read(tmp_path: Path) -> None:
    root = _version_1(tmp_path, failures=1, peak=1)
    assert group_of(7, "another", root) is None
    assert group_of(8, _ID, root) is None


def test_counters_are_read_as_soon_as_the_process_has_ended(tmp_path: Path) -> None:
    root = _version_1(tmp_path, failures=0, peak=1)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        group = replace(_group(root), pid=process.pid)
        seen = in_background("death", group.memory_at_death)
        with pytest.raises(TimeoutError):
            seen.result(0.05)
        process.communicate()
    assert seen.result(60) == group.memory() == group.memory_at_death()


def test_the_limits_are_above_the_group_that_an_engine_puts_the_processes_into(
    tmp_path: Path,
) -> None:
    group = f"machine.slice/libpod-{_ID}.scope"
    files = {
        f"{group}/memory.events": "max 2\noom_kill 1\n",
        f"{group}/cgroup.procs": "",
        f"{group}/container/memory.events": "max 0\noom_kill 0\n",
        f"{group}/container/cgroup.procs": "7\n8\n9\n",
    }
    root = _host(tmp_path, f"0::/{group}/container\n", files)
    for pid, parent, argv in ((7, 1, "bash\0run.sh\0"), (8, 7, "")):
        (root / f"proc/{pid}").mkdir(exist_ok=True)
        status = f"Name:\tit: (x)\nPPid:\t{parent}\nUid:\t10001\t10001\t10001\t10001\n"
        (root / f"proc/{pid}/status").write_text(status)
        (root / f"proc/{pid}/cmdline").write_text(argv)
    found = _group(root)
    assert found.memory() == MemoryUse(peak=None, limit_reached=2, oom_kills=1)
    assert found.processes() == (
        ContainerProcess(7, 1, "10001", "bash run.sh"),
        ContainerProcess(8, 7, "10001", "[it: (x)]"),
    )


def test_version_1_use_is_read_from_each_controllers_tree(tmp_path: Path) -> None:
    files = {
        f"memory/docker/{_ID}/memory.usage_in_bytes": "4096\n",
        f"memory/docker/{_ID}/memory.max_usage_in_bytes": "8192\n",
        f"cpuacct/docker/{_ID}/cpuacct.usage": "2500000000\n",
        f"pids/docker/{_ID}/pids.current": "3\n",
    }
    root = _host(tmp_path, f"4:memory:/docker/{_ID}\n0::/docker/{_ID}\n", files)
    assert _group(root).use() == ContainerUse(cpu_s=2.5, memory=4096, memory_peak=8192, pids=3)


def test_version_2_use(tmp_path: Path) -> None:
    group = f"system.slice/docker-{_ID}.scope"
    files = {
        f"{group}/cpu.stat": "usage_usec 2500000\nuser_usec 1\nsystem_usec 2\n",
        f"{group}/memory.current": "4096\n",
        f"{group}/memory.peak": "8192\n",
        f"{group}/pids.current": "3\n",
    }
    root = _host(tmp_path, f"0::/{group}\n", files)
    assert _group(root).use() == ContainerUse(cpu_s=2.5, memory=4096, memory_peak=8192, pids=3)


def test_a_group_that_is_gone_uses_nothing_known(tmp_path: Path) -> None:
    root = _host(tmp_path, f"0::/docker/{_ID}\n", {})
    assert _group(root).use() == ContainerUse()
