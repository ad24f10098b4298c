"""A program that asks NVML: one JSON question a line on stdin, one JSON answer a line on stdout.

A driver that is ill can keep a call for ever, so that ``adapters.nvml`` asks in this process, which
can be killed. It knows the standard library and pynvml alone, and ends when stdin does, even from
within a call that hangs.

    {"ask": "library"}                   {"answer": {"path", "digest", "driver", "official"}}
    {"ask": "devices"}                   {"answer": [{"uuid", "model", "memory", ...}, ...]}
    {"ask": "sample", "uuid": "GPU-…"}   {"answer": {"memory_used", ..., "unsupported": [...]}}

Any of them may be answered by ``{"absent": true}`` (no library) or by what the driver said instead:
``{"error": "GpuIsLost", "code": 15, "call": "nvmlDeviceGetName", "lost": true, "xids": [79]}``.
"""

import ctypes
import hashlib
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped]

_LIBRARY = "libnvidia-ml.so"
_STAND_IN = "orch_stand_in"
_EVENTS_A_LOOK = 1000
_SILENT = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
_GONE = (
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
    pynvml.NVML_ERROR_RESET_REQUIRED,
)
_NO_SUCH = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT)
_NO_INSTANCE = 0xFFFFFFFF  # the error is not one instance's
_MIG = "MIG-"  # how the UUID of an instance begins

Answer = dict[str, Any]


class DriverError(Exception):
    """NVML said no to one call."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: {code}")
        self.call = call
        self.code = code

    @property
    def silent(self) -> bool:
        """The driver, or the library, has no such query for this device."""
        return self.code in _SILENT

    @property
    def gone(self) -> bool:
        """The device is lost, not known, or useless until it is reset."""
        return self.code in _GONE or (
            self.call == "nvmlDeviceGetHandleByUUID" and self.code in _NO_SUCH
        )

    def answer(self) -> Answer:
        """Say it as an answer, by the name that pynvml derives for the code."""
        name = type(pynvml.NVMLError(self.code)).__name__.removeprefix("NVMLError_")
        return {"error": name, "code": self.code, "call": self.call, "lost": self.gone}


def call(name: str, *arguments: Any) -> Any:
    """Call one function of pynvml; what NVML refuses is a ``DriverError``."""
    try:
        return getattr(pynvml, name)(*arguments)
    except pynvml.NVMLError as error:
        raise DriverError(name, error.value) from error


def call_if_supported(name: str, *arguments: Any) -> Any:
    """Call one function; None where this device, driver or library has no such query."""
    try:
        return call(name, *arguments)
    except DriverError as error:
        if error.silent:
            return None
        raise


@dataclass(frozen=True)
class Target:
    """A device to be looked at: its own handle, and the GPU's; they differ for a MIG instance."""

    uuid: str
    own: Any
    board: Any
    instance: int | None

    @classmethod
    def of(cls, uuid: str) -> "Target":
        """Find a device by its UUID, anew at every look."""
        own = call("nvmlDeviceGetHandleByUUID", uuid)
        if not uuid.startswith(_MIG):
            return cls(uuid, own, own, None)
        board = call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", own)
        return cls(uuid, own, board, call("nvmlDeviceGetGpuInstanceId", own))

    @classmethod
    def of_handle(cls, own: Any, board: Any) -> "Target":
        """Describe a device whose handle is at hand."""
        uuid = call("nvmlDeviceGetUUID", own)
        instance = call("nvmlDeviceGetGpuInstanceId", own) if uuid.startswith(_MIG) else None
        return cls(uuid, own, board, instance)


def _memory(target: Target) -> Answer:
    found = call("nvmlDeviceGetMemoryInfo", target.own, pynvml.nvmlMemory_v2)
    return {"memory_used": found.used, "memory_total": found.total}


def _utilization(target: Target) -> Answer:
    return {"utilization": call("nvmlDeviceGetUtilizationRates", target.own).gpu}


def _mig_mode(target: Target) -> Answer:
    return {"mig": call("nvmlDeviceGetMigMode", target.board)[0] == 1}


def _remap(target: Target) -> Answer:
    """Rows are remapped on newer GPUs, pages retired on older ones; no GPU does both."""
    rows = call_if_supported("nvmlDeviceGetRemappedRows", target.board)
    if rows is not None:
        return {"pending_remap": bool(rows[2]), "failed_remap": bool(rows[3])}
    pages = call("nvmlDeviceGetRetiredPagesPendingStatus", target.board)
    return {"pending_remap": bool(pages)}


def _ecc(target: Target) -> Answer:
    found = call(
        "nvmlDeviceGetTotalEccErrors",
        target.board,
        pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        pynvml.NVML_VOLATILE_ECC,
    )
    return {"ecc_errors": found}


def _persistence(target: Target) -> Answer:
    return {"persistence": call("nvmlDeviceGetPersistenceMode", target.board) == 1}


def _power(target: Target) -> Answer:
    return {"power": call("nvmlDeviceGetPowerUsage", target.board) / 1000}


def _temperature(target: Target) -> Answer:
    sensor = pynvml.NVML_TEMPERATURE_GPU
    return {"temperature": call("nvmlDeviceGetTemperature", target.board, sensor)}


READERS: tuple[tuple[str, Callable[[Target], Answer]], ...] = (
    ("memory", _memory),
    ("utilization", _utilization),
    ("mig_mode", _mig_mode),
    ("pending_remap", _remap),
    ("ecc_errors", _ecc),
    ("persistence_mode", _persistence),
    ("power", _power),
    ("temperature", _temperature),
)
"""The queries that give single facts, by the names of ``domain.device.Query``."""

PROCESS_LISTS: tuple[tuple[str, str, str], ...] = (
    ("compute_processes", "compute", "nvmlDeviceGetComputeRunningProcesses_v3"),
    ("graphics_processes", "graphics", "nvmlDeviceGetGraphicsRunningProcesses_v3"),
    ("mps_processes", "mps", "nvmlDeviceGetMPSComputeRunningProcesses_v3"),
)
"""The queries that list processes: name, use, function."""


def _processes(target: Target, function: str, use: str) -> list[Answer]:
    """List processes; a list that outgrew its room between two calls is asked for again."""
    for _ in range(3):
        try:
            found = call(function, target.own)
            break
        except DriverError as error:
            if error.code != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
                raise
    else:
        raise DriverError(function, pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    return [{"pid": p.pid, "use": use, "memory": p.usedGpuMemory} for p in found]


@dataclass(frozen=True)
class Inbox:
    """The errors of one device that nobody has been told yet, each code once."""

    board: int | None
    instance: int | None
    xids: dict[int, None] = field(default_factory=dict)

    def concerns(self, event: Any) -> bool:
        """Tell whether an event is this device's; of another instance of its GPU it is not."""
        instance = event.gpuInstanceId
        return self.board == _address(event.device) and (
            self.instance is None or instance in {self.instance, _NO_INSTANCE}
        )


class Errors:
    """The Xids that the driver reports, kept by device until somebody looks at that device."""

    def __init__(self) -> None:
        self._set: Any = None
        self._reporting: set[int | None] = set()
        self._inboxes: dict[str, Inbox] = {}
        self._register()

    def since_last_look(self, target: Target) -> list[int] | None:
        """Take what came since the last look at this device; None where the driver cannot tell."""
        board = _address(target.board)
        inbox = self._inboxes.setdefault(target.uuid, Inbox(board, target.instance))
        if board not in self._reporting:
            return None
        self._gather()
        return _take(inbox)

    def last_words(self, uuid: str) -> list[int]:
        """Take what was reported of a device that cannot be looked at any more."""
        self._gather()
        inbox = self._inboxes.get(uuid)
        return [] if inbox is None else _take(inbox)

    def _register(self) -> None:
        """Ask for the errors of every GPU that can report them."""
        self._reporting = set()
        try:
            self._set = call("nvmlEventSetCreate")
        except DriverError:
            self._set = None
            return
        for board in boards():
            wanted = pynvml.nvmlEventTypeXidCriticalError
            try:
                if not call("nvmlDeviceGetSupportedEventTypes", board) & wanted:
                    continue
                call("nvmlDeviceRegisterEvents", board, wanted, self._set)
                targets = [Target.of_handle(own, board) for own in (board, *instances(board))]
            except DriverError:  # this one cannot tell
                continue
            self._reporting.add(_address(board))
            for target in targets:
                self._inboxes.setdefault(
                    target.uuid, Inbox(_address(target.board), target.instance)
                )

    def _gather(self) -> None:
        """Take what waits, without waiting for more."""
        if self._set is None:
            return
        try:
            for _ in range(_EVENTS_A_LOOK):
                event = call("nvmlEventSetWait", self._set, 0)
                for inbox in self._inboxes.values():
                    if inbox.concerns(event):
                        inbox.xids[event.eventData] = None
        except DriverError as error:
            if error.code != pynvml.NVML_ERROR_TIMEOUT:  # a GPU that is lost spoils the whole set
                pynvml.nvmlEventSetFree(self._set)
                self._register()


def _take(inbox: Inbox) -> list[int]:
    taken = list(inbox.xids)
    inbox.xids.clear()
    return taken


def _address(handle: Any) -> int | None:
    """Name a handle by what it points to: a lost device answers no question for its UUID."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def boards() -> Iterator[Any]:
    """Find every GPU that the driver has not lost. The order means nothing."""
    for index in range(call("nvmlDeviceGetCount")):
        try:
            yield call("nvmlDeviceGetHandleByIndex", index)
        except DriverError as error:
            if not error.gone:
                raise


def instances(board: Any) -> Iterator[Any]:
    """Find the MIG instances that a GPU is cut into."""
    mode = call_if_supported("nvmlDeviceGetMigMode", board)
    if mode is None or mode[0] != 1:
        return
    for index in range(call("nvmlDeviceGetMaxMigDeviceCount", board)):
        try:
            yield call("nvmlDeviceGetMigDeviceHandleByIndex", board, index)
        except DriverError as error:
            if error.code not in _NO_SUCH:
                raise


def tell_devices() -> list[Answer]:
    """List every GPU, or its MIG instances where it is cut into them."""
    driver = call("nvmlSystemGetDriverVersion")
    found = []
    for board in boards():
        uuid = call("nvmlDeviceGetUUID", board)
        parts = list(instances(board))
        for handle in parts or [board]:
            memory = call_if_supported("nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2)
            found.append(
                {
                    "uuid": call("nvmlDeviceGetUUID", handle),
                    "model": call("nvmlDeviceGetName", handle),
                    "memory": 0 if memory is None else memory.total,
                    "driver": driver,
                    "parent": uuid if parts else None,
                }
            )
    return found


def tell_sample(uuid: str, errors: Errors) -> Answer:
    """Look at one device once."""
    target = Target.of(uuid)
    sample: Answer = {"processes": []}
    unsupported = []
    for name, read in READERS:
        try:
            sample |= read(target)
        except DriverError as error:
            if not error.silent:
                raise
            unsupported.append(name)
    for name, use, function in PROCESS_LISTS:
        try:
            sample["processes"] += _processes(target, function, use)
        except DriverError as error:
            if not error.silent:
                raise
            unsupported.append(name)
    xids = errors.since_last_look(target)
    if xids is None:
        unsupported.append("xid_events")
    return {**sample, "xids": xids or [], "unsupported": unsupported}


def tell_library() -> Answer:
    """Say which file answers: a digest of the file whose name the kernel maps."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        path = line.split(maxsplit=5)[-1]
        if Path(path).name.startswith(_LIBRARY):
            break
    else:
        raise FileNotFoundError(_LIBRARY)
    with Path(path).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "path": path,
        "digest": f"sha256:{digest}",
        "driver": call("nvmlSystemGetDriverVersion"),
        "official": not hasattr(pynvml.nvmlLib, _STAND_IN),
    }


class Desk:
    """Answers questions. The driver is opened at the first, and stays open."""

    def __init__(self) -> None:
        self._errors: Errors | None = None
        self._library: Answer = {}

    def answer(self, question: Answer) -> Answer:
        """Answer one question; whatever the driver refuses is an answer."""
        try:
            if self._errors is None:
                call("nvmlInit")
                self._library = tell_library()
                self._errors = Errors()
            return {"answer": self._tell(question, self._errors)}
        except DriverError as error:
            if error.code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
                return {"absent": True}
            answer = error.answer()
            if self._errors is not None and error.gone:
                answer["xids"] = self._errors.last_words(question.get("uuid", ""))
            return answer

    def _tell(self, question: Answer, errors: Errors) -> Any:
        if question["ask"] == "sample":
            return tell_sample(question["uuid"], errors)
        return tell_devices() if question["ask"] == "devices" else self._library


def _read(questions: "queue.SimpleQueue[str]") -> None:
    """Hand on what is asked; when nobody is left to ask, end at once, whatever hangs."""
    for line in sys.stdin:
        questions.put(line)
    os._exit(0)


def main() -> None:
    """Answer until stdin ends."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # what a library prints is no answer
        questions: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(questions,), daemon=True).start()
        desk = Desk()
        while True:
            answers.write(json.dumps(desk.answer(json.loads(questions.get()))) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
