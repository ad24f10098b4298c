"""Whose end it was, the agent's or its container's: the engine tells of one, then the other."""

from typing import Any

import pytest

from orchestrator.domain.container import ContainerEnd, ContainerState, ContainerStatus
from orchestrator.errors import ContainerLostError
from orchestrator.phases.explore import _Exploration


class Ending:
    """A container whose command has been told to be over, and whose own end is still to be told."""

    def __init__(self, end: object | None = None, lost: Exception | None = None) -> None:
        self.end, self.lost = end, lost

    def wait(self, timeout: float) -> object | None:
        assert timeout > 0
        if self.lost is not None:
            raise self.lost
        return self.end

    def state(self) -> ContainerState:
        return ContainerState(ContainerStatus.RUNNING, None, False, "", "", 1)


class Exploration:
    """As much of an exploration as is asked here."""

    def __init__(self, container: Ending) -> None:
        self.container: Any = container


@pytest.mark.parametrize(
    ("container", "runs"),
    [
        (Ending(), True),
        (Ending(end=object.__new__(ContainerEnd)), False),
        (Ending(lost=ContainerLostError("removed by somebody")), False),
    ],
)
def test_a_container_that_dies_with_its_command_is_no_early_exit(
    container: Ending, *, runs: bool
) -> None:
    exploration: Any = Exploration(container)
    assert _Exploration._still_runs(exploration) is runs
