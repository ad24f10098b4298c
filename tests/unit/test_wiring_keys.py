"""The signing key on a disk that takes no more."""

import errno
import os
from pathlib import Path

import pytest

from orchestrator import wiring
from orchestrator.errors import StorageFullError
from orchestrator.storage.layout import RunsFolder


@pytest.mark.parametrize("full", ["home", "runs"])
def test_a_disk_without_room_for_the_key_is_the_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    home, runs = tmp_path / "home", RunsFolder(tmp_path / "runs")
    if full == "runs":
        wiring._open_key(home, RunsFolder(tmp_path / "other"))

    def no_room(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", no_room)
        with pytest.raises(StorageFullError, match=str(tmp_path / full)):
            wiring._open_key(home, runs)
    assert wiring._open_key(home, runs).keyid == wiring._open_key(home, runs).keyid
