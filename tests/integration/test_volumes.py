"""Size-limited folders, for real."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from orchestrator.adapters.loop_volumes import (
    FolderVolumes,
    LoopVolumes,
    can_mount,
    image_of,
    open_volumes,
)
from orchestrator.errors import InfrastructureError, StorageFullError
from orchestrator.ports import SizeLimit, Volume

MIB = 1024**2
needs_mount = pytest.mark.skipif(not can_mount(), reason="needs root and loop devices")


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Volume]:
    volume = LoopVolumes().create(tmp_path / "vo:l ü", 32 * MIB, owner=(1234, 4321))
    yield volume
    volume.close()


def fill(file: IO[bytes]) -> None:
    while True:
        file.write(bytes(MIB))


@needs_mount
def test_the_volume_is_empty_mounted_and_owned(loop: Volume) -> None:
    assert loop.size_limit is SizeLimit.LOOP
    assert os.path.ismount(loop.path)
    assert list(loop.path.iterdir()) == []
    status = loop.path.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (1234, 4321, 0o755)
    options = next(
        line.split()[3]
        for line in Path("/proc/mounts").read_text().splitlines()
        if line.split()[1].endswith("l\\040ü")
    ).split(",")
    assert {"nodev", "nosuid"} <= set(options)


@needs_mount
def test_the_image_is_allocated_and_the_content_is_limited(loop: Volume) -> None:
    status = image_of(loop.path).stat()
    assert status.st_blocks * 512 >= 32 * MIB
    before = loop.used()
    with (loop.path / "fill").open("wb", buffering=0) as file, pytest.raises(OSError) as failed:
        fill(file)
    assert failed.value.errno == errno.ENOSPC
    assert before < loop.used() <= 32 * MIB


@needs_mount
def test_closing_leaves_an_empty_folder_and_no_image(tmp_path: Path) -> None:
    volume = LoopVolumes().create(tmp_path / "v", 8 * MIB, owner=(0, 0))
    (volume.path / "f").write_text("x")
    with (volume.path / "f").open() as held:
        volume.close()
        assert held.read() == "x"
    volume.close()
    assert list(tmp_path.iterdir()) == [tmp_path / "v"]
    assert list((tmp_path / "v").iterdir()) == []


@needs_mount
def test_a_volume_left_by_a_dead_supervisor_is_found_with_its_files(tmp_path: Path) -> None:
    volumes = LoopVolumes()
    volume = volumes.create(tmp_path / "v", 8 * MIB, owner=(0, 0))
    (volume.path / "f").write_text("x")
    assert volumes.adopt(tmp_path / "other") is None
    found = volumes.adopt(tmp_path / "v")
    assert found is not None
    assert (found.path / "f").read_text() == "x"
    found.close()
    assert volumes.adopt(tmp_path / "v") is None


@needs_mount
def test_no_space_to_allocate_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(StorageFullError):
        LoopVolumes().create(tmp_path / "v", 1 << 50, owner=(0, 0))
    assert list(tmp_path.iterdir()) == []


@needs_mount
def test_an_image_too_small_to_format_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError):
        LoopVolumes().create(tmp_path / "v", 4096, owner=(0, 0))
    assert list(tmp_path.iterdir()) == []


def test_a_plain_folder_says_what_it_is(tmp_path: Path) -> None:
    volumes = FolderVolumes()
    volume = volumes.create(tmp_path / "v", MIB, owner=(os.geteuid(), os.getegid()))
    assert volume.size_limit is SizeLimit.WATCHED
    assert volumes.relaxations()
    before = volume.used()
    (volume.path / "f").write_bytes(bytes(MIB))
    os.link(volume.path / "f", volume.path / "g")
    assert MIB <= volume.used() - before < 2 * MIB
    volume.close()
    assert (volume.path / "f").exists()


def test_a_plain_folder_is_refused_on_a_full_host(tmp_path: Path) -> None:
    with pytest.raises(StorageFullError):
        FolderVolumes().create(tmp_path / "v", 1 << 60, owner=(os.geteuid(), os.getegid()))
    assert list(tmp_path.iterdir()) == []


def test_the_better_kind_is_chosen() -> None:
    assert isinstance(open_volumes(), LoopVolumes if can_mount() else FolderVolumes)
