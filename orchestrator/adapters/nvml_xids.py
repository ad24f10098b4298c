"""The errors (Xids) that the driver reports as events. For the child process alone."""

from dataclasses import dataclass, field
from typing import Any

import pynvml  # type: ignore[import-untyped]

from orchestrator.adapters.nvml_calls import (
    DriverError,
    Target,
    address,
    call,
    instances,
    of_each_board,
)

_EVENTS_A_LOOK = 1000
_NO_INSTANCE = 0xFFFFFFFF  # the error is not one instance's


@dataclass(frozen=True)
class Inbox:
    """The errors of one device that nobody has been told yet, each code once."""

    board: int | None
    instance: int | None
    xids: dict[int, None] = field(default_factory=dict)

    def concerns(self, event: Any) -> bool:
        """Tell whether an event is this device's; of another instance of its GPU it is not."""
        instance = event.gpuInstanceId
        return self.board == address(event.device) and (
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
        board = address(target.board)
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
            targets = of_each_board(self._register_board)
        except DriverError:  # none can tell
            return
        for target in targets:
            board = address(target.board)
            self._reporting.add(board)
            self._inboxes.setdefault(target.uuid, Inbox(board, target.instance))

    def _register_board(self, board: Any, _index: int) -> list[Target]:
        """Ask for the errors of one GPU; empty where it does not report any."""
        wanted = pynvml.nvmlEventTypeXidCriticalError
        if not call("nvmlDeviceGetSupportedEventTypes", board) & wanted:
            return []
        call("nvmlDeviceRegisterEvents", board, wanted, self._set)
        return [Target.of_handle(own, board) for own in (board, *instances(board))]

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
                freed, self._set = self._set, None
                pynvml.nvmlEventSetFree(freed)
                self._register()


def _take(inbox: Inbox) -> list[int]:
    taken = list(inbox.xids)
    inbox.xids.clear()
    return taken
