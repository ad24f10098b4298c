"""Sockets of gateways that were killed go with the next one; the living ones stay."""

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.adapters.model_gateway.gateway import _listen, socket_folder


@pytest.fixture
def host() -> Iterator[Path]:
    """A host folder whose path leaves room for a socket's, wherever tests have their folders."""
    with tempfile.TemporaryDirectory(prefix="o-", dir="/tmp") as folder:
        yield Path(folder)


def test_a_dead_socket_goes_and_a_living_one_stays(host: Path) -> None:
    dead, living, begun = (socket_folder(host) for _ in range(3))
    _listen(dead / "model.sock", (0, 0)).close()
    listener = _listen(living / "model.sock", (0, 0))
    unfinished = socket.socket(socket.AF_UNIX)
    unfinished.bind(str(begun / "new.sock"))
    fresh = socket_folder(host)
    assert set((host / "sockets").iterdir()) == {living, begun, fresh}
    listener.close()
    unfinished.close()


def test_a_socket_has_no_name_before_somebody_listens(host: Path) -> None:
    folder = socket_folder(host)
    listener = _listen(folder / "model.sock", (0, 0))
    assert [path.name for path in folder.iterdir()] == ["model.sock"]
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(folder / "model.sock"))
    listener.close()
