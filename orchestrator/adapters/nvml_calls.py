"""Calls to NVML through pynvml, and the devices that they find. For the child process alone."""

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pynvml  # type: ignore[import-untyped]

_SILENT = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
_GONE = (
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
    pynvml.NVML_ERROR_RESET_REQUIRED,
)
_NO_SUCH = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT)
_MIG = "MIG-"  # how the UUID of an instance begins

Answer = dict[str, Any]
_Told = TypeVar("_Told")


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


def address(handle: Any) -> int | None:
    """Name a handle by what it points to: a lost device answers no question for its UUID."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def of_each_board(tell: Callable[[Any, int], list[_Told]]) -> list[_Told]:
    """Ask about every GPU by its handle and its index, in an order that means nothing.

    One that refuses is left out: NVML counts GPUs that are lost, and GPUs that this user, or this
    control group, may not have.

    Raises:
        DriverError: all of them refuse; the first one's.
    """
    told: list[_Told] = []
    refusals: list[DriverError] = []
    for index in range(call("nvmlDeviceGetCount")):
        try:
            told += tell(call("nvmlDeviceGetHandleByIndex", index), index)
        except DriverError as error:
            refusals.append(error)
    if refusals and not told:
        raise refusals[0]
    return told


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
