"""What the gate saw of devices, for its evidence: looks that saw the same become one row."""

from dataclasses import dataclass, field
from typing import TypeVar

from orchestrator.domain.device import DeviceSample, DeviceUse, Query
from orchestrator.domain.gate_evidence import HolderRecord, SampleRecord
from orchestrator.domain.process import ProcessFacts
from orchestrator.evidence.idleness import Rule, Seen

_MOST_ROWS = 20_000
_Number = TypeVar("_Number", int, float)
_NS = 1_000_000_000


@dataclass(slots=True)
class SampleLog:
    """Every look since ``began_ns``; a row for each change of what was seen."""

    rule: Rule
    began_ns: int
    rows: list[SampleRecord] = field(default_factory=list)
    unsupported: dict[str, frozenset[Query]] = field(default_factory=dict)
    _open: dict[str, int] = field(default_factory=dict)
    _holders: dict[tuple[str, int], HolderRecord] = field(default_factory=dict)

    def add(self, seen: Seen) -> None:
        """Note one look; beyond a bound of rows the last one of the device is stretched."""
        sample = seen.sample
        at = round((sample.boottime_ns - self.began_ns) / _NS, 3)
        known = self.unsupported.get(sample.uuid, frozenset())
        self.unsupported[sample.uuid] = known | sample.unsupported
        for pid in sorted({process.pid for process in sample.processes}):
            self._note_holder(seen, pid)
        row = _row(sample, at)
        place = self._open.get(sample.uuid)
        if place is None:
            self._open[sample.uuid] = len(self.rows)
            self.rows.append(row)
            return
        last = self.rows[place]
        gap = round(at - last.last_s, 3)
        if _same(last, row) or len(self.rows) >= _MOST_ROWS:
            self.rows[place] = _joined(last, row, gap)
        else:
            self._open[sample.uuid] = len(self.rows)
            self.rows.append(row.model_copy(update={"widest_s": gap}))

    @property
    def holders(self) -> tuple[HolderRecord, ...]:
        """Every process that was seen on a device."""
        return tuple(self._holders.values())

    def _note_holder(self, seen: Seen, pid: int) -> None:
        uuid = seen.sample.uuid
        on = [process for process in seen.sample.processes if process.pid == pid]
        facts = seen.processes.get(pid, ProcessFacts(pid))
        known = self._holders.get((uuid, pid))
        uses: set[DeviceUse] = {process.use for process in on}
        told = [process.memory for process in on if process.memory is not None]
        if known is not None:
            uses |= set(known.uses)
            told += [] if known.memory is None else [known.memory]
        self._holders[uuid, pid] = HolderRecord(
            uuid=uuid,
            pid=pid,
            uses=tuple(sorted(uses)),
            memory=max(told, default=None),
            command=facts.command or (known.command if known else None),
            executable=facts.executable or (known.executable if known else None),
            user=facts.user or (known.user if known else None),
            container=facts.container or (known.container if known else None),
            permitted=self.rule.holder(facts) is not None,
        )


def _row(sample: DeviceSample, at: float) -> SampleRecord:
    return SampleRecord(
        uuid=sample.uuid,
        first_s=at,
        last_s=at,
        count=1,
        widest_s=0.0,
        memory_used=sample.memory_used,
        utilization=sample.utilization,
        pids=tuple(sorted({process.pid for process in sample.processes})),
        pending_remap=sample.pending_remap,
        failed_remap=sample.failed_remap,
        ecc_errors=sample.ecc_errors,
        xids=sample.xids,
        mig=sample.mig,
        persistence=sample.persistence,
        power=None if sample.power is None else (sample.power, sample.power),
        temperature=None if sample.temperature is None else (sample.temperature,) * 2,
    )


_VARYING = frozenset({"first_s", "last_s", "count", "widest_s", "power", "temperature"})


def _same(one: SampleRecord, other: SampleRecord) -> bool:
    return all(
        getattr(one, name) == getattr(other, name)
        for name in SampleRecord.model_fields
        if name not in _VARYING
    )


def _joined(last: SampleRecord, row: SampleRecord, gap: float) -> SampleRecord:
    return last.model_copy(
        update={
            "last_s": row.last_s,
            "count": last.count + 1,
            "widest_s": max(last.widest_s, gap),
            "power": _range(last.power, row.power),
            "temperature": _range(last.temperature, row.temperature),
        }
    )


def _range(
    one: tuple[_Number, _Number] | None, other: tuple[_Number, _Number] | None
) -> tuple[_Number, _Number] | None:
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])
