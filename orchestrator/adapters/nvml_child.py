"""A program that asks NVML: one JSON question a line on stdin, one JSON answer a line on stdout.

A driver that is ill can keep a call for ever, so that ``adapters.nvml`` asks in this process, which
can be killed. It imports little, for a fast start, and ends when stdin does, even from within a
call that hangs.

    {"ask": "library"}                   {"answer": {"path", "digest", "driver", "official"}}
    {"ask": "devices"}                   {"answer": [{"uuid", "model", "memory", ...}, ...]}
    {"ask": "sample", "uuid": "GPU-…"}   {"answer": {"memory_used", ..., "unsupported": [...]}}

Any of them may be answered by ``{"absent": true}`` (no library) or by what the driver said instead:
``{"error": "GpuIsLost", "code": 15, "call": "nvmlDeviceGetName", "lost": true, "xids": [79]}``.
"""

import hashlib
import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped]

from orchestrator.adapters.nvml_calls import (
    Answer,
    DriverError,
    Target,
    call,
    call_if_supported,
    instances,
    of_each_board,
)
from orchestrator.adapters.nvml_xids import Errors

_LIBRARY = "libnvidia-ml.so"
_STAND_IN = "orch_stand_in"


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


def tell_devices() -> list[Answer]:
    """List every GPU, or its MIG instances where it is cut into them."""
    driver = call("nvmlSystemGetDriverVersion")
    return [{**device, "driver": driver} for device in of_each_board(_board)]


def _board(board: Any, index: int) -> list[Answer]:
    uuid = call("nvmlDeviceGetUUID", board)
    minor = call_if_supported("nvmlDeviceGetMinorNumber", board)
    parts = list(instances(board))
    found = []
    for handle in parts or [board]:
        memory = call_if_supported("nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2)
        found.append(
            {
                "uuid": call("nvmlDeviceGetUUID", handle),
                "model": call("nvmlDeviceGetName", handle),
                "memory": 0 if memory is None else memory.total,
                "parent": uuid if parts else None,
                "minor": minor,
                "index": index,
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
