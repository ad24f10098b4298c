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
        self._child: subprocess.Popen[bytes] | None = None
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
        """End the child."""
        with self._alone:
            self._end_child()

    def _ask(self, question: Mapping[str, str]) -> Any:
        """Put one question; None where there is no library."""
        with self._alone:
            if self._child is not None and self._child.poll() is None:
                child, patience = self._child, self._patience
            else:
                self._end_child()
                child, patience = self._start(), self._patience_at_start
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

    def _start(self) -> subprocess.Popen[bytes]:
        # -P: nothing is imported from where orch was called.
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self._child

    def _exchange(
        self, child: subprocess.Popen[bytes], question: Mapping[str, str], patience: float
    ) -> bytes:
        """Write the question, and read one line within ``patience`` seconds."""
        if child.stdin is None or child.stdout is None:
            raise TypeError("the child was started without pipes")
        with suppress(BrokenPipeError):  # it has died; reading says so
            os.write(child.stdin.fileno(), json.dumps(question).encode() + b"\n")
        deadline = self._clock.boottime_ns() + round(patience * 1e9)
        line = bytearray()
        while not line.endswith(b"\n"):
            left = (deadline - self._clock.boottime_ns()) / 1e9
            if left <= 0 or not select.select([child.stdout], [], [], left)[0]:
                raise DeviceUnreadableError(
                    f"NVML hangs: no answer about {_subject(question)} in {patience:g} s; "
                    f"{_OTHERWISE}"
                )
            piece = os.read(child.stdout.fileno(), _PIECE)
            if not piece:
                raise DeviceUnreadableError(
                    f"the process that asks NVML about {_subject(question)} ended with "
                    f"{_ended(child)}; {_OTHERWISE}"
                )
            line += piece
        return bytes(line)

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        _ended(child)


def _ended(child: subprocess.Popen[bytes]) -> str:
    """Wait for an end that is due; a process that a driver holds in the kernel may never end."""
    try:
        return f"status {child.wait(timeout=1)}"
    except subprocess.TimeoutExpired:
        return "no status"


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
