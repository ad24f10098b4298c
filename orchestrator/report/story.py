"""The story of a run: its events in order, with times, in words short enough for one line."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from orchestrator.domain.outcome import StopReason
from orchestrator.lifecycle.machine import Event
from orchestrator.report import words
from orchestrator.report.views import AttemptView, ReplayView, RunView, ScoringView
from orchestrator.storage.journal import Record

_NANO = 1e9
_LISTED = 4


@dataclass(frozen=True, slots=True)
class Moment:
    """One event as it is told.

    Attributes:
        run: the run's own name, ``attempt-001`` or ``replay-001/score-001``.
        utc: when, as recorded.
        elapsed: seconds since the story began; None when the times cannot be compared.
        event: what happened.
        text: its data, in short.
    """

    run: str
    utc: str
    elapsed: float | None
    event: Event
    text: str

    def document(self) -> dict[str, Any]:
        """The moment as JSON."""
        return {
            "run": self.run,
            "ts": self.utc,
            "elapsed_s": self.elapsed,
            "event": self.event,
            "text": self.text,
        }


def tell(view: RunView) -> tuple[Moment, ...]:
    """Tell the story of ``view`` and of everything below it, each run whole before the next."""
    parts = tuple(_parts(view))
    start = next((part.journal.records[0] for part in parts if part.journal.records), None)
    if start is None:
        return ()
    return tuple(
        Moment(
            run=_name(part),
            utc=record.ts,
            elapsed=_between(start, record),
            event=record.event,
            text=brief(record),
        )
        for part in parts
        for record in part.journal.records
    )


def brief(record: Record) -> str:
    """Say an event's data in short; keys that are missing are left out."""
    data = record.data
    told = [say(data[key]) for key, say in _SAID.items() if data.get(key) not in (None, "", [], {})]
    return ", ".join(part for part in told if part)


def taken_over(view: RunView) -> list[tuple[str, str]]:
    """Tell who took a run over from a supervisor that died, and how long nobody watched it."""
    notes = (record.data for record in view.journal.all(Event.NOTED))
    return [
        ("taken over", f"{note.get('gap_to')} by {note.get('by')}, {_gap(note.get('gap_s'))}")
        for note in notes
        if note.get("audit") == "adopted"
    ]


def _gap(seconds: Any) -> str:
    known = words.duration(seconds) if isinstance(seconds, int | float) else "nobody knows how long"
    return f"without a supervisor: {known}"


def exit_text(facts: Any) -> str:
    """Say exit facts in one line: the code, the memory, who killed it, how long it ran."""
    if not isinstance(facts, Mapping):
        return ""
    code = facts.get("exit_code")
    parts = ["no exit code" if code is None else f"exit code {code}"]
    if facts.get("oom_killed"):
        own = facts.get("memory_limit_reached")
        parts.append("out of memory" + (" (its own limit)" if own else ""))
    if (killer := facts.get("killed_by")) not in (None, "", "nobody"):
        parts.append(f"killed by {_plain(killer)}")
    if stop := facts.get("stop_reason"):
        # An agent's container is ended so once the exploration is over, whatever came of it.
        over = stop == StopReason.SUBMITTED
        parts.append("stop reason " + ("exploration over" if over else _plain(stop)))
    if isinstance(seconds := facts.get("duration_s"), int | float) and seconds:
        parts.append(words.duration(seconds))
    return ", ".join(parts)


def _parts(view: RunView) -> list[RunView]:
    below: tuple[RunView, ...] = ()
    if isinstance(view, AttemptView):
        below = view.replays
    elif isinstance(view, ReplayView):
        below = view.scorings
    return [view, *(part for run in below for part in _parts(run))]


def _name(view: RunView) -> str:
    parts = view.id.split("/")
    return "/".join(parts[2:] if isinstance(view, ScoringView) else parts[-1:])


def _between(start: Record, record: Record) -> float | None:
    """Seconds by the monotonic clock within one boot, else by the wall clock."""
    if start.boot_id == record.boot_id:
        return (record.mono_ns - start.mono_ns) / _NANO
    first, then = words.moment(start.ts), words.moment(record.ts)
    return (then - first).total_seconds() if first and then else None


def _plain(value: Any) -> str:
    return str(value).replace("_", " ")


def _named(label: str) -> Callable[[Any], str]:
    return lambda value: f"{label} {value}"


def _digest(label: str) -> Callable[[Any], str]:
    return lambda value: f"{label} {words.short_digest(str(value))}"


def _flag(text: str) -> Callable[[Any], str]:
    return lambda value: text if value is True else ""


def _listed(label: str) -> Callable[[Any], str]:
    def say(value: Any) -> str:
        names = [_entry(entry) for entry in value] if isinstance(value, list) else [str(value)]
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        return f"{label} {' '.join(names[:_LISTED])}{more}".lstrip()

    return say


def _entry(entry: Any) -> str:
    if isinstance(entry, Mapping):
        return str(next((entry[key] for key in ("name", "checkpoint") if key in entry), "?"))
    return str(entry)


def _number(label: str) -> Callable[[Any], str]:
    def say(value: Any) -> str:
        return f"{label} {words.figure(value) if isinstance(value, int | float) else value}"

    return say


def _wall(value: Any) -> str:
    return f"wall {words.duration(value)}" if isinstance(value, int | float) else ""


def _best(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"best {value.get('checkpoint', '?')} {_number('')(value.get('value')).strip()}"
    return f"best {value}"


_SAID: Mapping[str, Callable[[Any], str]] = MappingProxyType(
    {
        "series": _named("series"),
        "reason": str,
        "origin": _named("by"),
        "fact": str,
        "sign": _named("sign"),
        "audit": _named("audit"),
        "by": _named("by"),
        "pid": _named("process"),
        "gap_s": _gap,
        "exit": exit_text,
        "host_facts": _listed("host facts:"),
        "contested": _listed("contested:"),
        "wall_s": _wall,
        "container": _digest("container"),
        "cpuset": _named("cpus"),
        "checkpoint": str,
        "status": str,
        "checkpoints": _listed("checkpoints:"),
        "accepted": _listed("accepted:"),
        "rejected": _named("rejected"),
        "ignored": _named("ignored"),
        "best": _best,
        "value": _number("value"),
        "empty": _flag("empty"),
        "patch_sha256": _digest("patch"),
        "manifest_digest": _digest("tree"),
        "summary_sha256": _digest("summary"),
        "message": str,
    }
)
"""How each key of an event's data is said, in the order of saying; other keys are not told."""
