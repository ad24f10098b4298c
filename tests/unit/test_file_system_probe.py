"""The probe finds a file system that lacks what records rely on."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from orchestrator.errors import InfrastructureError
from orchestrator.storage.probe import file_system_faults, nearest_folder, require_file_system


def test_a_sound_file_system_has_no_faults_and_stays_clean(tmp_path: Path) -> None:
    assert file_system_faults(tmp_path) == ()
    assert list(tmp_path.iterdir()) == []


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EOPNOTSUPP, "not supported")


def nothing(*_: object, **__: object) -> None:
    return None


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [
        (fcntl, "flock", "flock: not supported"),
        (Path, "hardlink_to", "link: not supported"),
        (Path, "replace", "rename: not supported"),
        (os, "fsync", "fsync: not supported"),
    ],
)
def test_an_operation_that_is_refused_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, fault: str
) -> None:
    monkeypatch.setattr(owner, name, refuse)
    assert file_system_faults(tmp_path) == (fault,)
    with pytest.raises(InfrastructureError, match=fault):
        require_file_system(tmp_path)


def test_a_lock_that_locks_nobody_out_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", nothing)
    assert file_system_faults(tmp_path) == ("flock: two holders at once",)


def test_a_rename_that_leaves_the_old_file_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "replace", nothing)
    assert file_system_faults(tmp_path) == ("rename: the old file stayed",)


def test_a_folder_that_does_not_exist_is_judged_by_what_will_hold_it(tmp_path: Path) -> None:
    assert nearest_folder(tmp_path / "runs" / "later") == tmp_path
    assert nearest_folder(tmp_path) == tmp_path
