"""What ``telemetry.jsonl`` holds: one row a line, in the order things were seen.

Times are seconds (``at`` and ``started`` on CLOCK_BOOTTIME), sizes bytes, power watts, temperature
degrees Celsius, utilisation per cent. A number that could not be read is left out.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from orchestrator.domain.device import DeviceUse
from orchestrator.domain.roles import Phase
from orchestrator.domain.schema import Strict

APPLICATION_XIDS: frozenset[int] = frozenset({13, 31, 43, 45})
"""Errors that a program causes by itself, its end included: recorded, and no sign of the host's.

Source: NVIDIA, "XID Errors": graphics engine exception, page fault, stopped, clean-up.
"""


class Owner(StrEnum):
    """Whose a process on a GPU is."""

    OURS = "ours"
    FOREIGN = "foreign"
    """Proven: it is not in our container, and another place is named where it is."""
    PERMITTED = "permitted"
    UNKNOWN = "unknown"


class Use(Strict):
    """What the container uses; ``cpu_s`` and ``memory_peak`` are since its start."""

    cpu_s: float | None = None
    memory: int | None = None
    memory_peak: int | None = None
    pids: int | None = None


class HostLoad(Strict):
    """How the host stands. Pressure is the share of the last ten seconds that somebody waited."""

    load: float | None = None
    memory_available: int | None = None
    cpu_pressure: float | None = None
    memory_pressure: float | None = None
    io_pressure: float | None = None


class Holder(Strict):
    """A process on a GPU. ``container`` is a short id; None where its cgroup names none."""

    pid: int
    use: DeviceUse
    owner: Owner
    container: str | None = None
    memory: int | None = None


class Gpu(Strict):
    """One look at one GPU; ``more`` counts processes beyond the listed ones."""

    uuid: str
    memory: int | None = None
    utilization: int | None = None
    power: float | None = None
    temperature: int | None = None
    holders: tuple[Holder, ...] = ()
    more: int = 0


class Row(Strict):
    """What every row says: when, and of which container (the first twelve digits of its id)."""

    utc: str
    at: float
    of: str


class Begin(Row):
    """Telemetry of a container begins, or goes on under another supervisor."""

    kind: Literal["begin"] = "begin"
    phase: Phase
    container: str
    boot_id: str
    every: float
    gpus: tuple[str, ...] = ()


class Sample(Row):
    """A periodic look."""

    kind: Literal["sample"] = "sample"
    use: Use = Use()
    host: HostLoad = HostLoad()
    gpus: tuple[Gpu, ...] = ()


class Started(Strict):
    """A process that was not there at the look before.

    ``root``: its parent is outside of the container. ``inner`` is its pid inside.
    """

    pid: int
    ppid: int
    started: float
    root: bool
    inner: int | None = None
    command: str | None = None
    user: str | None = None


class Changed(Strict):
    """A process that has got another parent (its own has ended) or another command line."""

    pid: int
    started: float
    ppid: int
    command: str | None = None


class Ended(Strict):
    """A process that is not there any more; ``last`` is when it was seen last."""

    pid: int
    started: float
    last: float
    cpu_s: float | None = None


class Processes(Row):
    """How the container's processes differ from those of the look before.

    ``more`` counts started ones that are not listed: a file lists so many and no more.
    """

    kind: Literal["processes"] = "processes"
    started: tuple[Started, ...] = ()
    changed: tuple[Changed, ...] = ()
    ended: tuple[Ended, ...] = ()
    more: int = 0


class Foreign(Row):
    """Somebody else's process on a GPU of the run, as of this look.

    ``total`` is for how long, up to now, somebody else is proven to have been on one of them.
    """

    kind: Literal["foreign"] = "foreign"
    uuid: str
    pid: int
    started: float
    first: float
    last: float
    total: float
    command: str | None = None
    user: str | None = None
    container: str | None = None
    cgroup: str | None = None


class Xid(Row):
    """Errors that the driver reported of a GPU since the look before."""

    kind: Literal["xid"] = "xid"
    uuid: str
    codes: tuple[int, ...]


class DeviceState(StrEnum):
    """Whether a GPU of the run could be looked at."""

    READABLE = "readable"
    UNREADABLE = "unreadable"
    LOST = "lost"


class DeviceNews(Row):
    """A GPU can no longer be looked at, or can again; ``message`` is the driver's."""

    kind: Literal["device"] = "device"
    uuid: str
    state: DeviceState
    message: str = ""


class GapReason(StrEnum):
    """Why nothing was seen for a while."""

    RESUMED = "resumed"
    """Nobody supervised the container."""
    LATE = "late"
    """A look took too long, or the host was too busy for one."""


class Gap(Row):
    """Nothing was seen for ``seconds`` up to now."""

    kind: Literal["gap"] = "gap"
    seconds: float
    why: GapReason


class Thinned(Row):
    """The file had grown to its bound: ``dropped`` periodic rows are gone, one comes ``every``."""

    kind: Literal["thinned"] = "thinned"
    dropped: int
    every: float


class End(Row):
    """The container has ended; ``use`` is the last that was read, ``dropped`` what is missing."""

    kind: Literal["end"] = "end"
    use: Use = Use()
    host: HostLoad = HostLoad()
    gpus: tuple[Gpu, ...] = ()
    dropped: dict[str, int] = Field(default_factory=dict)


AnyRow = Annotated[
    Begin | Sample | Processes | Foreign | Xid | DeviceNews | Gap | Thinned | End,
    Field(discriminator="kind"),
]
ROW: TypeAdapter[AnyRow] = TypeAdapter(AnyRow, config={"defer_build": True})
"""Reads one row."""
