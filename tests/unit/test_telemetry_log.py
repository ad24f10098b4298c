"""A file of rows that is bounded whatever comes, whole after a kill, and closed when it is."""

import errno
import json
import os
from itertools import pairwise
from pathlib import Path

import pytest

from orchestrator.domain.device import DeviceUse
from orchestrator.domain.roles import Phase
from orchestrator.domain.telemetry import (
    AnyRow,
    Begin,
    Changed,
    End,
    Ended,
    Foreign,
    Gap,
    GapReason,
    Gpu,
    Holder,
    HostLoad,
    Owner,
    Processes,
    Sample,
    Started,
    Thinned,
    Use,
    Xid,
)
from orchestrator.errors import StorageFullError, TaskPackError
from orchestrator.evidence.telemetry_log import (
    MAX_BYTES,
    MAX_EVENTS,
    TelemetryLog,
    foreign_total,
    listed_processes,
    read_telemetry,
)

OF = "0123456789ab"
UTC = "2026-01-01T00:00:00.000+00:00"


def sample(at: float, gpus: int = 0) -> Sample:
    holders = tuple(
        Holder(pid=4_000_000, use=DeviceUse.COMPUTE, owner=Owner.OURS, container=OF, memory=2**36)
        for _ in range(2)
    )
    return Sample(
        utc=UTC,
        at=at,
        of=OF,
        use=Use(cpu_s=123456.789, memory=2**38, memory_peak=2**38, pids=512),
        host=HostLoad(
            load=12.34,
            memory_available=2**38,
            cpu_pressure=12.34,
            memory_pressure=12.34,
            io_pressure=12.34,
        ),
        gpus=tuple(
            Gpu(
                uuid=f"GPU-00000000-0000-0000-0000-{number:012d}",
                memory=2**36,
                utilization=100,
                power=699.123,
                temperature=71,
                holders=holders,
            )
            for number in range(gpus)
        ),
    )


def begin(every: float = 10.0) -> Begin:
    return Begin(utc=UTC, at=0.0, of=OF, phase=Phase.REPLAY, container=OF, boot_id="b", every=every)


def end(at: float) -> End:
    return End(utc=UTC, at=at, of=OF, use=Use(), host=HostLoad())


def foreign(at: float, total: float = 0.0) -> Foreign:
    return Foreign(
        utc=UTC, at=at, of=OF, uuid="GPU-a", pid=7, started=1.0, first=1.0, last=at, total=total
    )


def test_rows_read_as_they_were_written(tmp_path: Path) -> None:
    rows: list[AnyRow] = [
        begin(),
        Processes(
            utc=UTC,
            at=1.0,
            of=OF,
            started=(Started(pid=7, ppid=1, started=0.5, root=True, command='"\\\n\x00é💥'),),
            changed=(Changed(pid=7, started=0.5, ppid=2),),
            ended=(Ended(pid=7, started=0.5, last=0.9, cpu_s=0.1),),
            more=3,
        ),
        sample(2.0, gpus=1),
        foreign(3.0),
        Xid(utc=UTC, at=4.0, of=OF, uuid="GPU-a", codes=(63, 94)),
        Gap(utc=UTC, at=5.0, of=OF, seconds=4.5, why=GapReason.LATE),
        end(6.0),
    ]
    path = tmp_path / "telemetry.jsonl"
    log = TelemetryLog(path, 10.0)
    for row in rows:
        log.add(row)
    log.close()
    log.close()
    assert log.error is None
    found = read_telemetry(path)
    assert found.rows == tuple(rows)
    assert found.unreadable == 0
    assert len(path.read_bytes().splitlines()) == len(rows)
    assert listed_processes(found.rows) == 2


def test_a_missing_file_holds_nothing(tmp_path: Path) -> None:
    assert read_telemetry(tmp_path / "none").rows == ()


def test_a_torn_last_line_counts_for_nothing_and_is_cut_before_more_is_added(
    tmp_path: Path,
) -> None:
    path = tmp_path / "telemetry.jsonl"
    log = TelemetryLog(path, 10.0)
    log.add(begin())
    log.close()
    with path.open("ab") as file:
        file.write(b'{"kind":"sample","at":12')
    assert read_telemetry(path).rows == (begin(),)
    again = TelemetryLog(path, 10.0)
    assert again.before == (begin(),)
    again.add(end(9.0))
    again.close()
    assert read_telemetry(path).rows == (begin(), end(9.0))
    assert read_telemetry(path).unreadable == 0


def test_a_line_that_is_no_row_is_counted_and_the_rest_read(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    log = TelemetryLog(path, 10.0)
    log.add(begin())
    log.close()
    with path.open("ab") as file:
        file.write(b'not json\n{"kind":"other"}\n{"kind":"sample"}\n\xff\n[]\n')
    found = read_telemetry(path)
    assert found.rows == (begin(),)
    assert found.unreadable == 5


def test_what_is_no_file_of_ours_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        TelemetryLog(tmp_path / "link", 10.0)
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "huge").write_bytes(b"")
    os.truncate(tmp_path / "huge", 3 * MAX_BYTES)
    with pytest.raises(TaskPackError, match="huge"):
        read_telemetry(tmp_path / "huge")


@pytest.mark.parametrize("gpus", [0, 8])
def test_thirteen_hours_at_the_real_rate_fit(tmp_path: Path, gpus: int) -> None:
    path = tmp_path / "telemetry.jsonl"
    log = TelemetryLog(path, 10.0)
    log.add(begin())
    at = 0.0
    while at < 13 * 3600:
        at += log.every
        log.add(sample(at, gpus))
    log.add(end(at))
    log.close()
    rows = read_telemetry(path).rows
    samples = [row for row in rows if isinstance(row, Sample)]
    assert path.stat().st_size <= MAX_BYTES
    assert log.error is None
    assert rows[0] == begin()
    assert rows[-1] == end(at)
    assert samples[0].at == 10.0
    assert samples[-1].at == at
    if gpus:
        assert log.every == 20.0
        assert sum(isinstance(row, Thinned) for row in rows) == 1
        assert len(samples) > 2000
    else:
        assert log.every == 10.0
        assert len(samples) == 4680


def test_a_file_that_is_full_is_thinned_out_evenly_and_keeps_what_happened_once(
    tmp_path: Path,
) -> None:
    path = tmp_path / "telemetry.jsonl"
    log = TelemetryLog(path, 10.0, max_bytes=40_000)
    log.add(begin())
    log.add(foreign(5.0))
    at = 0.0
    for _ in range(2000):
        at += log.every
        log.add(sample(at))
        assert path.stat().st_size <= 40_000
    log.close()
    rows = read_telemetry(path).rows
    assert [row.kind for row in rows[:2]] == ["begin", "foreign"]
    samples = [row.at for row in rows if isinstance(row, Sample)]
    steps = {round(b - a, 3) for a, b in pairwise(samples)}
    assert samples[0] == 10.0
    assert samples[-1] == at
    assert max(steps) <= 2 * log.every
    (thinned,) = (row for row in rows if isinstance(row, Thinned))
    assert thinned.every == log.every > 10.0
    assert thinned.dropped + len(samples) == 2000


def test_the_newest_look_is_kept_when_a_file_is_thinned_out(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    for most in range(4_000, 5_000, 100):  # with even and with odd numbers of rows
        path.unlink(missing_ok=True)
        log = TelemetryLog(path, 10.0, max_bytes=most)
        at = 0.0
        while log.every == 10.0:
            at += 1.0
            log.add(sample(at))
        log.close()
        samples = [row.at for row in read_telemetry(path).rows if isinstance(row, Sample)]
        assert samples[0] == 1.0
        assert samples[-2:] == [at - 1.0, at]


def test_a_thinned_file_goes_on_as_seldom_when_it_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    log = TelemetryLog(path, 10.0, max_bytes=4_000)
    for number in range(40):
        log.add(sample(float(number)))
    log.close()
    assert log.every > 10.0
    assert TelemetryLog(path, 10.0).every == log.every
    assert TelemetryLog(path, 1e9).every == 1e9


def test_events_without_end_are_counted_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    log = TelemetryLog(path, 10.0)
    for number in range(MAX_EVENTS + 5):
        log.add(foreign(float(number)))
    log.close()
    assert log.dropped == {"foreign": 5}
    again = TelemetryLog(path, 10.0)  # nor is there room for more of another container
    again.add(foreign(1.0))
    again.add(end(2.0))
    again.close()
    assert again.dropped == {"foreign": 1}
    assert len(read_telemetry(path).rows) == MAX_EVENTS + 1


def test_the_bound_holds_whatever_the_rows_are(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    log = TelemetryLog(path, 10.0, max_bytes=20_000)
    wide = Processes(
        utc=UTC,
        at=1.0,
        of=OF,
        started=(Started(pid=1, ppid=1, started=1.0, root=False, command="\\" * 200),),
    )
    for _ in range(100):
        log.add(wide)
        log.add(sample(1.0))
    log.close()
    assert path.stat().st_size <= 20_000
    assert log.dropped["processes"] > 50


def test_nothing_is_written_after_the_end_whoever_tries(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    log = TelemetryLog(path, 10.0)
    log.add(begin())
    log.close()
    before = path.read_bytes()
    log.add(sample(1.0))
    assert path.read_bytes() == before


def test_a_full_disk_is_remembered_and_what_is_there_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "telemetry.jsonl"
    log = TelemetryLog(path, 10.0)
    log.add(begin())
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:9]))
    log.add(sample(1.0))
    monkeypatch.undo()
    assert isinstance(log.error, OSError)
    assert log.error.errno == errno.ENOSPC
    log.add(sample(2.0))
    log.close()
    assert read_telemetry(path).rows == (begin(),)
    assert path.read_bytes().endswith(b"\n")


def test_a_disk_that_is_full_when_the_file_is_thinned_leaves_it_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "telemetry.jsonl"
    log = TelemetryLog(path, 10.0, max_bytes=2_000)

    def full(*_: object, **__: object) -> None:
        raise StorageFullError("no space")

    monkeypatch.setattr("orchestrator.evidence.telemetry_log.write_file", full)
    before = b""
    while log.error is None:
        before = path.read_bytes()
        log.add(sample(1.0))
    log.close()
    assert isinstance(log.error, StorageFullError)
    assert path.read_bytes() == before


def test_a_sealed_file_is_its_owners_alone_also_when_it_was_thinned(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    log = TelemetryLog(path, 10.0, mode=0o600, max_bytes=2_000)
    assert path.stat().st_mode & 0o777 == 0o600
    for number in range(20):
        log.add(sample(float(number)))
    log.close()
    assert any(row.kind == "thinned" for row in read_telemetry(path).rows)
    assert path.stat().st_mode & 0o777 == 0o600


def test_how_long_others_were_there_is_known_to_who_goes_on() -> None:
    rows = (foreign(1.0, 5.0), foreign(2.0, 15.0), sample(3.0))
    assert foreign_total(rows, OF) == 15.0
    assert foreign_total(rows, "another") == 0.0


def test_a_row_is_a_line_of_strict_json(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    log = TelemetryLog(path, 10.0)
    log.add(sample(1.0, gpus=1))
    log.close()
    (line,) = path.read_text().splitlines()
    assert json.loads(line)["kind"] == "sample"
    assert "null" not in line
    assert "[]" not in line
