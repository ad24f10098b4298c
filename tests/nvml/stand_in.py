"""GPUs on a host that has none: a stand-in ``libnvidia-ml.so.1``, and the hands that move it.

The library is compiled from ``stand_in.c`` once a test run, and the real pynvml loads it in orch's
own child process, because the loader finds it first::

    stand_in = StandIn(tmp_path)                      # skips the test where there is no C compiler
    stand_in.gpu("GPU-a")                             # an idle H100; fields of Gpu as keywords
    stand_in.gpu("GPU-b", **DESKTOP)
    run_orch(..., env={**os.environ, **stand_in.env})     # or: stand_in.enter(monkeypatch)

    stand_in.gpu("GPU-a", used=11 << 30)              # change one; everything else stays
    stand_in.gpu("GPU-a", processes=[Process(4321, memory=1 << 30)])
    stand_in.gpu("GPU-a", mig=True, utilization=None)
    stand_in.instance("MIG-1", of="GPU-a", number=1)  # cut it
    stand_in.xid("GPU-a", 79)                         # the driver reports an error
    stand_in.lose("GPU-a")                            # it falls off the bus
    stand_in.remove("GPU-b")                          # the driver never heard of it
    stand_in.order("GPU-b", "GPU-a")                  # another numbering
    stand_in.error("nvmlInitWithFlags", Code.LIB_RM_VERSION_MISMATCH)
    stand_in.error("nvmlDeviceGetName", Code.NO_PERMISSION, "GPU-a")   # for one device
    stand_in.hang("nvmlDeviceGetUtilizationRates")
    stand_in.die("nvmlDeviceGetUtilizationRates")     # the child ends within the call
    stand_in.chatter("nvmlDeviceGetUtilizationRates") # it prints to stdout
    stand_in.heal()                                   # no more of these four

Every change is written at once, in one piece, and seen by the next call of any process.
"""

import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

GIB = 1 << 30
_SOURCE = Path(__file__).with_name("stand_in.c")


class Code(IntEnum):
    """What NVML's functions return."""

    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    DRIVER_NOT_LOADED = 9
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    UNKNOWN = 999


@dataclass(frozen=True)
class Process:
    """A process on a device; ``memory`` None means that the driver does not tell."""

    pid: int
    memory: int | None = None
    use: str = "compute"


@dataclass(frozen=True)
class Gpu:
    """A GPU or an instance. A value of None means "not supported". ``power`` in milliwatts."""

    name: str = "NVIDIA H100 80GB HBM3"
    total: int | None = 80 * GIB
    used: int | None = 0
    reserved: int | None = 600 << 20
    utilization: int | None = 0
    mig: bool | None = False
    remap_pending: bool | None = False
    remap_failed: bool | None = False
    retired_pending: bool | None = None
    ecc: int | None = 0
    persistence: bool | None = True
    power: int | None = 70_000
    temperature: int | None = 31
    events: bool | None = True
    minor: int | None = None
    processes: Sequence[Process] = ()
    lost: bool = False
    unsupported: Sequence[str] = ()
    """Functions of NVML that this device refuses with "not supported"."""


DESKTOP: Mapping[str, Any] = MappingProxyType(
    {
        "name": "NVIDIA GeForce RTX 3060",
        "total": 12 * GIB,
        "mig": None,
        "remap_pending": None,
        "remap_failed": None,
        "ecc": None,
        "persistence": None,
        "power": None,
        "events": None,
        "unsupported": ("nvmlDeviceGetMPSComputeRunningProcesses_v3",),
    }
)
"""What a plain desktop card does not tell."""

INSTANCE: Mapping[str, Any] = MappingProxyType(
    {
        "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "total": 10 * GIB,
        "utilization": None,
        "mig": None,
        "remap_pending": None,
        "remap_failed": None,
        "ecc": None,
        "persistence": None,
        "power": None,
        "temperature": None,
        "events": None,
    }
)
"""What a MIG instance tells of itself."""


@dataclass(frozen=True)
class _Part:
    of: str
    number: int
    facts: Gpu


@dataclass
class StandIn:
    """The library, and the state that it answers from; see the module's docstring."""

    folder: Path
    driver: str = "570.86.15"
    _gpus: dict[str, Gpu] = field(default_factory=dict)
    _parts: dict[str, _Part] = field(default_factory=dict)
    _faults: list[str] = field(default_factory=list)
    _xids: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.library = build()
        self._write()

    @property
    def env(self) -> dict[str, str]:
        """What the environment of orch must hold."""
        return {
            "LD_LIBRARY_PATH": str(self.library.parent),
            "STAND_IN_NVML_STATE": str(self._state),
        }

    def enter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put ``env`` into this process's environment, for a probe used within the test."""
        for name, value in self.env.items():
            monkeypatch.setenv(name, value)

    def gpu(self, uuid: str, **changes: Any) -> None:
        """Add a GPU, or change one."""
        usual = Gpu(minor=len(self._gpus))
        self._gpus[uuid] = replace(self._gpus.get(uuid, usual), **changes)
        self._write()

    def instance(self, uuid: str, *, of: str, number: int = 1, **changes: Any) -> None:
        """Add a MIG instance of a GPU, or change one."""
        before = self._parts[uuid].facts if uuid in self._parts else Gpu(**INSTANCE)
        self._parts[uuid] = _Part(of, number, replace(before, **changes))
        self._write()

    def order(self, *uuids: str) -> None:
        """Number the GPUs in this order."""
        self._gpus = {uuid: self._gpus[uuid] for uuid in uuids}
        self._write()

    def lose(self, uuid: str) -> None:
        """Let a GPU fall off the bus."""
        self.gpu(uuid, lost=True)

    def remove(self, uuid: str) -> None:
        """Let the driver not know a device any more."""
        (self._gpus if uuid in self._gpus else self._parts).pop(uuid)
        self._write()

    def xid(self, uuid: str, code: int, instance: int | None = None) -> None:
        """Let the driver report an error of a GPU, perhaps of one instance of it."""
        serial = len(self._xids) + 1
        place = "" if instance is None else f" {instance}"
        self._xids.append((uuid, f"xid {serial} {code}{place}"))
        self._write()

    def error(self, function: str, code: int, uuid: str = "") -> None:
        """Let a function fail, for one device or always."""
        self._fault(f"error {function} {int(code)} {uuid}")

    def hang(self, function: str, uuid: str = "") -> None:
        """Let a function never return."""
        self._fault(f"hang {function} {uuid}")

    def die(self, function: str, uuid: str = "") -> None:
        """Let a function end the process that calls it."""
        self._fault(f"die {function} {uuid}")

    def chatter(self, function: str) -> None:
        """Let a function print 4,000 bytes to stdout."""
        self._fault(f"print {function}")

    def heal(self) -> None:
        """Take back every error, hang, death and print."""
        self._faults.clear()
        self._write()

    @property
    def _state(self) -> Path:
        return self.folder / "nvml-state"

    def _fault(self, line: str) -> None:
        self._faults.append(line)
        self._write()

    def _write(self) -> None:
        draft = self._state.with_suffix(".new")
        draft.write_text("".join(f"{line}\n" for line in self._lines()))
        draft.replace(self._state)

    def _lines(self) -> Iterator[str]:
        yield f"driver {self.driver}"
        yield from self._faults
        for uuid, gpu in self._gpus.items():
            yield f"gpu {uuid}"
            yield from self._facts(uuid, gpu)
            for name, part in self._parts.items():
                if part.of == uuid:
                    yield f"instance {name} {part.number}"
                    yield from self._facts(name, part.facts)
        for uuid, gpu in (self._gpus | {n: p.facts for n, p in self._parts.items()}).items():
            yield from (f"error {name} {Code.NOT_SUPPORTED:d} {uuid}" for name in gpu.unsupported)

    def _facts(self, uuid: str, gpu: Gpu) -> Iterator[str]:
        yield f"name {gpu.name}"
        yield from ["lost"] * gpu.lost
        for fact in fields(Gpu):
            value = getattr(gpu, fact.name)
            if fact.name not in {"name", "lost"} and isinstance(value, int):
                yield f"{fact.name} {value:d}"
        for process in gpu.processes:
            memory = "-" if process.memory is None else process.memory
            yield f"process {process.use} {process.pid} {memory}"
        yield from (line for of, line in self._xids if of == uuid)


@functools.cache
def build() -> Path:
    """Compile the library; skip the test where nothing can."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler (cc): the stand-in NVML library cannot be built")
    library = _build_folder() / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC",
         f"-Wl,-soname,{library.name}", "-o", str(library), str(_SOURCE)],
        check=True,
    )  # fmt: skip
    return library


_folders: list[tempfile.TemporaryDirectory[str]] = []


def _build_folder() -> Path:
    """Make a folder that lives as long as the test run."""
    folder = tempfile.TemporaryDirectory(prefix="orch-stand-in-")
    _folders.append(folder)
    return Path(folder.name)
