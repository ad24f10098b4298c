from pathlib import Path

import pytest

from orchestrator.adapters.fake_clock import FakeClock
from orchestrator.domain.attempt import RunKind
from orchestrator.domain.device import DeviceUse
from orchestrator.domain.roles import Phase
from orchestrator.domain.telemetry import (
    AnyRow,
    Begin,
    End,
    Foreign,
    Gap,
    GapReason,
    Gpu,
    Holder,
    Owner,
    Sample,
    Use,
)
from orchestrator.evidence.telemetry_log import TelemetryLog
from orchestrator.lifecycle.machine import Event
from orchestrator.report.telemetry import MOST, figures, lines
from orchestrator.storage.journal import Journal

GIB = 1024**3


def begin(of: str, phase: Phase = Phase.REPLAY) -> Begin:
    return Begin(utc="", at=0.0, of=of, phase=phase, container=of, boot_id="b", every=10.0)


def sample(of: str, at: float, cpu_s: float, memory: int) -> Sample:
    holder = Holder(pid=1, use=DeviceUse.COMPUTE, owner=Owner.OURS)
    return Sample(
        utc="",
        at=at,
        of=of,
        use=Use(cpu_s=cpu_s, memory=memory, memory_peak=memory),
        gpus=(Gpu(uuid="GPU-a", memory=int(at) * GIB, utilization=90, holders=(holder,)),),
    )


def foreign(at: float, pid: int = 7) -> Foreign:
    return Foreign(
        utc="",
        at=at,
        of="a",
        uuid="GPU-a",
        pid=pid,
        started=1.0,
        first=2.0,
        last=at,
        total=at - 2.0,
        command="python \x1b[2Jsteal.py",
        user="mallory",
        cgroup="/user.slice",
    )


ROWS: tuple[AnyRow, ...] = (
    begin("a"),
    sample("a", 2.0, 1.0, GIB),
    foreign(4.0),
    sample("a", 5.0, 4.0, 2 * GIB),
    foreign(9.0),
    Gap(utc="", at=50.0, of="a", seconds=41.0, why=GapReason.RESUMED),
    End(utc="", at=60.0, of="a", use=Use(cpu_s=4.0, memory_peak=GIB)),
    begin("b"),
    sample("b", 1.0, 0.5, 5),
    begin("v", Phase.VALIDATE),
    sample("v", 9.0, 100.0, 9 * GIB),
)


def test_figures_are_of_the_containers_of_the_phase() -> None:
    found = figures(ROWS, Phase.REPLAY)
    assert (found.looks, found.cpu_s, found.memory) == (4, 4.5, 2 * GIB)
    assert (found.gpu_memory, found.gpu_utilization) == (5 * GIB, 90)
    assert [gap.seconds for gap in found.gaps] == [41.0]
    assert [row.last for row in found.foreign] == [9.0]
    assert figures(ROWS, Phase.VALIDATE).cpu_s == 100.0
    assert figures((), Phase.SCORE).looks == 0


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    made = Journal(tmp_path / "lifecycle.jsonl", RunKind.ATTEMPT, "r", FakeClock())
    made.append(Event.REGISTERED)
    return made


def write(path: Path, *rows: AnyRow) -> None:
    log = TelemetryLog(path, 10.0)
    for row in rows:
        log.add(row)
    log.close()


def test_a_person_is_told_in_few_lines(tmp_path: Path, journal: Journal) -> None:
    path = tmp_path / "telemetry.jsonl"
    write(path, *ROWS, *(foreign(9.0, pid) for pid in range(100, 110)))
    for number in range(MOST + 1):
        data = {"pid": number, "command": "left", "overlap": 8.0, "beside": "later"}
        journal.append(Event.NOTED, audit="orphan_overlap", **data)
    journal.append(Event.NOTED, audit="another")
    told = list(lines(path, Phase.REPLAY, journal.view))
    assert told[0] == (
        "telemetry",
        (
            "4 looks, at least 4.5 CPU s, memory up to 2 GiB, GPU memory up to 5 GiB, "
            "GPU up to 90 % busy, 1 gap, the longest 41 s"
        ),
    )
    assert told[1] == (
        "foreign GPU use",
        "pid 7 python \x1b[2Jsteal.py, user mallory, in /user.slice: 7.0 s on GPU-a",
    )
    assert told[MOST + 1] == ("foreign GPU use", "and 6 more")
    assert told[MOST + 2] == ("left running", "pid 0 left: 8.0 s beside later")
    assert told[-1] == ("left running", "and 1 more")


def test_without_telemetry_nothing_is_told(tmp_path: Path, journal: Journal) -> None:
    assert list(lines(tmp_path / "none", Phase.EXPLORE, journal.view)) == []


def test_what_cannot_be_read_is_said(tmp_path: Path, journal: Journal) -> None:
    path = tmp_path / "telemetry.jsonl"
    path.write_text("nonsense\n")
    told = list(lines(path, Phase.EXPLORE, journal.view))
    assert told == [("telemetry", "1 line cannot be read")]
    path.unlink()
    path.mkdir()
    ((name, said),) = lines(path, Phase.EXPLORE, journal.view)
    assert name == "telemetry"
    assert said.startswith("cannot be read")
