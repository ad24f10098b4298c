"""GPUs as NVIDIA's driver tells of them, asked in a child process that can be killed."""

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from typing_extensions import override

from orchestrator.domain.device import (
    Device,
    DeviceLibrary,
    DeviceProcess,
    DeviceSample,
    DeviceUse,
    Query,
)
from orchestrator.errors import DeviceLostError, DeviceUnreadableError
from orchestrator.ports import Clock, DeviceProbe

_PROGRAM = "orchestrator.adapters.nvml_child"
_PATIENCE = 10.0
_PATIENCE_AT_START = 60.0  # without persistence the driver wakes every GPU first, seconds each
_PIECE = 64 * 1024
_LAST_WORDS = 200

ACTIONS: Mapping[str, str] = MappingProxyType(
    {
        "LibRmVersionMismatch": "the driver was updated while an older one runs: "
        "reboot, or unload and load the nvidia kernel modules",
        "DriverNotLoaded": "load the driver (modprobe nvidia), or reinstall it for this kernel",
        "NoPermission": "this user may not open /dev/nvidiactl or /dev/nvidia*: "
        "give it their group, or run orch as root",
        "GpuIsLost": "reset the GPU (nvidia-smi --gpu-reset) or reboot",
        "ResetRequired": "reset the GPU (nvidia-smi --gpu-reset) or reboot",
        "NotFound": "orch gpus lists what the driver knows",
        "InvalidArgument": "orch gpus lists what the driver knows",
    }
)
"""What the host's operator should do, by the name of NVML's error."""

_OTHERWISE = "see what nvidia-smi and the kernel's log say; reset the GPU or reboot"


class NvmlProbe(DeviceProbe):
    """Asks NVML through ``nvml_child``, started at the first question and kept.

    A question that is not answered in time ends the child, and the next one starts another. So
    does anything else that went wrong with it, and every refusal that concerns the driver rather
    than one device: the next child sees a driver that was mended meanwhile. May be used from
    several threads.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        patience: float = _PATIENCE,
        patience_at_start: float = _PATIENCE_AT_START,
    ) -> None:
        """Ask nothing yet.

        Args:
            patience: seconds until a call counts as hanging.
            patience_at_start: the same for the first question of a child, which opens the driver.
        """
        self._clock = clock
        self._patience = patience
        self._patience_at_start = patience_at_start
        self._child: _Child | None = None
        self._alone = threading.Lock()

    @override
    def devices(self) -> tuple[Device, ...]:
        """List the GPUs that the driver lets us look at."""
        answer = self._ask({"ask": "devices"})
        return tuple(Device(**found) for found in answer or ())

    @override
    def sample(self, uuid: str) -> DeviceSample:
        """Look at one device by its UUID."""
        now = self._clock.boottime_ns()
        answer = self._ask({"ask": "sample", "uuid": uuid})
        if answer is None:
            raise DeviceLostError(f"there is no NVIDIA driver here that could know {uuid}")
        return _sample(uuid, now, answer)

    @override
    def library(self) -> DeviceLibrary | None:
        """Say which file the child has loaded."""
        answer = self._ask({"ask": "library"})
        return None if answer is None else DeviceLibrary(**answer)

    @override
    def close(self) -> None:
        """End the child; whoever waits for an answer of it waits no longer."""
        child = self._child
        if child is not None:
            child.stop()
        with self._alone:
            self._end_child()

    def _ask(self, question: Mapping[str, str]) -> Any:
        """Put one question; None where there is no library."""
        with self._alone:
            if self._child is not None and self._child.lives():
                child, patience = self._child, self._patience
            else:
                self._end_child()
                child, patience = _Child(), self._patience_at_start
                self._child = child
            try:
                reply = json.loads(self._exchange(child, question, patience))
            except BaseException:
                self._end_child()
                raise
            if "answer" not in reply and not reply.get("lost"):
                self._end_child()
        if "error" in reply:
            raise _refusal(reply, question.get("uuid", ""))
        return reply.get("answer")

    def _exchange(self, child: "_Child", question: Mapping[str, str], patience: float) -> bytes:
        """Put the question, and take one line within ``patience`` seconds."""
        child.write(json.dumps(question).encode() + b"\n")
        deadline = self._clock.boottime_ns() + round(patience * 1e9)
        line = b""
        while not line.endswith(b"\n"):
            left = (deadline - self._clock.boottime_ns()) / 1e9
            piece = child.read(left) if left > 0 else None
            if piece is None:
                raise DeviceUnreadableError(
                    f"NVML hangs: no answer about {_subject(question)} in {patience:g} s; "
                    f"{_OTHERWISE}"
                )
            if not piece:
                raise DeviceUnreadableError(
                    f"the process that asks NVML about {_subject(question)} ended with "
                    f"{child.end()}; {_OTHERWISE}"
                )
            line += piece
        return line

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()


class _Child:
    """The process that asks NVML, and the end of what it complains of."""

    def __init__(self) -> None:
        try:
            # -P: nothing is imported from where orch was called.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as fault:
            raise DeviceUnreadableError(
                f"no process to ask NVML can be started: {fault.strerror}"
            ) from fault
        self.pid = self._process.pid
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._pipes = tuple(pipe for pipe in pipes if pipe is not None)
        self._stdin, self._stdout, self._stderr = (pipe.fileno() for pipe in self._pipes)
        os.set_blocking(self._stderr, False)
        self._complaint = b""

    def lives(self) -> bool:
        """Tell whether it has not ended."""
        return self._process.poll() is None

    def write(self, line: bytes) -> None:
        """Hand it a line."""
        with suppress(BrokenPipeError):  # it has died; reading says so
            os.write(self._stdin, line)

    def read(self, seconds: float) -> bytes | None:
        """Take what it says within that time; None when that is nothing, empty at its end."""
        poll = select.poll()
        poll.register(self._stdout, select.POLLIN)
        if not poll.poll(seconds * 1000):
            return None
        self._hear_complaints()
        return os.read(self._stdout, _PIECE)

    def end(self) -> str:
        """Wait for an end that is due, and say how it was and what was complained of last.

        A process that a driver holds within the kernel may never end.
        """
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self._hear_complaints()
        last = self._complaint.decode(errors="replace").strip().rpartition("\n")[2]
        return f"status {self._process.returncode}{last and ': '}{last}"

    def stop(self) -> None:
        """End it; who reads from it sees that."""
        self._process.kill()

    def kill(self) -> None:
        """End it, and let go of it."""
        self.stop()
        self.end()
        for pipe in self._pipes:
            pipe.close()

    def _hear_complaints(self) -> None:
        """Keep the end of what it printed beside its answers, so that it never waits for us."""
        with suppress(BlockingIOError):
            while piece := os.read(self._stderr, _PIECE):
                self._complaint = (self._complaint + piece)[-_LAST_WORDS:]


def _subject(question: Mapping[str, str]) -> str:
    return question.get("uuid") or f"the {question['ask']}"


def _refusal(reply: Mapping[str, Any], uuid: str) -> DeviceLostError | DeviceUnreadableError:
    """Say in one line what NVML said, and what to do on the host."""
    name = reply["error"]
    said = f"NVML says {name} ({reply['code']}, {reply['call']})"
    action = ACTIONS.get(name, _OTHERWISE)
    if not (uuid and reply["lost"]):
        return DeviceUnreadableError(f"{said}; {action}")
    xids = "".join(f", Xid {xid}" for xid in reply.get("xids", ()))
    return DeviceLostError(f"the driver has lost {uuid}: {said}{xids}; {action}")


def _sample(uuid: str, boottime_ns: int, found: Mapping[str, Any]) -> DeviceSample:
    return DeviceSample(
        uuid=uuid,
        boottime_ns=boottime_ns,
        memory_used=found.get("memory_used"),
        memory_total=found.get("memory_total"),
        utilization=found.get("utilization"),
        processes=tuple(
            DeviceProcess(p["pid"], DeviceUse(p["use"]), p["memory"]) for p in found["processes"]
        ),
        pending_remap=found.get("pending_remap"),
        failed_remap=found.get("failed_remap"),
        ecc_errors=found.get("ecc_errors"),
        xids=tuple(found["xids"]),
        mig=found.get("mig"),
        persistence=found.get("persistence"),
        power=found.get("power"),
        temperature=found.get("temperature"),
        unsupported=frozenset(map(Query, found["unsupported"])),
    )
