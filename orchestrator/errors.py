"""The exception tree, with the exit code each class ends the program with.

What a candidate does is a value, never one of these. These say that the operator or the machine
got something wrong::

    OrchError
    |-- UsageError                64   the command line asks for something that cannot be done
    |-- TaskPackError             65   a task pack, a recipe, a patch or a record is faulty
    |-- EngineUnavailableError    69   no container engine answers
    |-- InfrastructureError       75   the machine failed; the same command may be tried again
    |   |-- GateRefusedError           a gate check or a reservation said no
    |   |   `-- ResourcesBusyError     somebody else has what is asked for; it will be free again
    |   |-- ContainerLostError         the machine ended a container, or lost it
    |   |-- AgentUnstartedError        an agent's own program cannot run in the container
    |   |-- DeviceUnreadableError      the driver would not say how a GPU stands
    |   |-- DeviceLostError            a GPU has gone
    |   |-- AssetMismatchError         an asset is missing or not the one the task locks
    |   `-- StorageFullError           no space (or a failed fsync) under our own files
    `-- InterruptedByOperator    130   a person asked us to stop
        `-- ContainerLeftRunning        a person asked twice: it runs on, to be adopted

Anything else that escapes is a bug of ours: exit 70, with its traceback.

Every message names what is wrong, where, and (``remedy``) what to do next.
"""

from enum import IntEnum
from typing import ClassVar


class Exit(IntEnum):
    """Exit codes of the ``orch`` command (after sysexits.h where a name fits)."""

    OK = 0
    FINDING = 1
    UNAUTHENTICATED = 3
    USAGE = 64
    TASK_PACK = 65
    ENGINE_UNAVAILABLE = 69
    BUG = 70
    INFRASTRUCTURE = 75
    INTERRUPTED = 130


class OrchError(Exception):
    """A failure that is not the candidate's. ``remedy`` says what to do next, in one line."""

    exit_code: ClassVar[Exit] = Exit.BUG

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class UsageError(OrchError):
    """The operator asked for something that cannot be done."""

    exit_code = Exit.USAGE


class TaskPackError(OrchError):
    """A task pack, an image's recipe, a patch or a record is faulty; the message says where."""

    exit_code = Exit.TASK_PACK


class EngineUnavailableError(OrchError):
    """No container engine answers; nothing was started."""

    exit_code = Exit.ENGINE_UNAVAILABLE


class InfrastructureError(OrchError):
    """The machine failed. The run is ``terminal_infrastructure`` and may be tried again."""

    exit_code = Exit.INFRASTRUCTURE


class GateRefusedError(InfrastructureError):
    """A check before the start said no; nothing was started."""


class ResourcesBusyError(GateRefusedError):
    """Somebody else has a device, CPUs or memory now; waiting is all that it takes."""


class ContainerLostError(InfrastructureError):
    """The machine ended a container, the engine lost it, or another engine or boot answers."""


class AgentUnstartedError(InfrastructureError):
    """The program that the host put into a container for an agent could not be run there."""


class DeviceUnreadableError(InfrastructureError):
    """The driver does not answer, or not what was asked; what is unknown is never idle."""


class DeviceLostError(InfrastructureError):
    """The driver has lost a GPU, or does not know it (any more)."""


class AssetMismatchError(InfrastructureError):
    """An asset is missing, or its digest is not the one the task locks."""


class StorageFullError(InfrastructureError):
    """A write of ours failed for want of space, or an fsync failed. Old files are intact."""


class InterruptedByOperator(OrchError):  # noqa: N818 - it is a wish, not an error
    """A person asked for a stop; the run ended as ``terminal_operator``."""

    exit_code = Exit.INTERRUPTED


class ContainerLeftRunning(InterruptedByOperator):
    """A person asked twice: the container runs on, labelled, and its run has no ending yet."""
