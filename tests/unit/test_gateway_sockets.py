"""Sockets of gateways that were killed go with the next one; the living ones stay."""

import socket
from pathlib import Path

from orchestrator.adapters.model_gateway.gateway import _listen, socket_folder


def test_a_dead_socket_goes_and_a_living_one_stays(tmp_path: Path) -> None:
    dead, living, begun = (socket_folder(tmp_path) for _ in range(3))
    _listen(dead / "model.sock", (0, 0)).close()
    listener = _listen(living / "model.sock", (0, 0))
    unfinished = socket.socket(socket.AF_UNIX)
    unfinished.bind(str(begun / "new.sock"))
    fresh = socket_folder(tmp_path)
    assert set((tmp_path / "sockets").iterdir()) == {living, begun, fresh}
    listener.close()
    unfinished.close()


def test_a_socket_has_no_name_before_somebody_listens(tmp_path: Path) -> None:
    folder = socket_folder(tmp_path)
    listener = _listen(folder / "model.sock", (0, 0))
    assert [path.name for path in folder.iterdir()] == ["model.sock"]
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(folder / "model.sock"))
    listener.close()
