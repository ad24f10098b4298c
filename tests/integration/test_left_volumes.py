"""What a supervisor that died left mounted: known by what it was made from, whatever its name."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.adapters.loop_volumes import FolderVolumes, LoopVolumes, can_mount, image_of
from orchestrator.adapters.mounts import mounted_at
from orchestrator.adapters.overlay_views import OverlayViews, PlainViews
from orchestrator.errors import InfrastructureError

pytestmark = pytest.mark.skipif(not can_mount(), reason="mounting takes root and loop devices")

MIB = 1 << 20


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where a volume may be, under a name that the kernel has to escape."""
    folder = tmp_path / "a b\\040\tü"
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=False, capture_output=True)
    image_of(folder).unlink(missing_ok=True)


def test_a_mounted_volume_is_left_until_it_is_closed(place: Path) -> None:
    volumes = LoopVolumes()
    assert volumes.left(place) is None
    volume = volumes.create(place, 4 * MIB, owner=(0, 0))
    mounted = mounted_at(place)
    assert mounted is not None
    assert mounted.kind == "ext4"
    assert mounted.backing() == image_of(place)
    size = volumes.left(place)
    assert size is not None
    assert size >= 4 * MIB
    volume.close()
    assert volumes.left(place) is None


def test_an_image_without_a_mount_and_a_mount_without_an_image_are_left(place: Path) -> None:
    volumes = LoopVolumes()
    volumes.create(place, 4 * MIB, owner=(0, 0))
    image_of(place).unlink()
    assert volumes.left(place) is not None
    subprocess.run(["umount", place], check=True)
    assert volumes.left(place) is None
    image_of(place).write_bytes(b"\1" * 8192)
    assert volumes.left(place) == 8192
    opened = volumes.adopt(place)
    assert opened is None
    assert volumes.left(place) is None


def test_another_image_on_its_place_is_not_its_own(place: Path, tmp_path: Path) -> None:
    other = LoopVolumes().create(tmp_path / "other", 4 * MIB, owner=(0, 0))
    place.mkdir()
    subprocess.run(["mount", "--bind", other.path, place], check=True)
    with pytest.raises(InfrastructureError, match="not its own image"):
        LoopVolumes().left(place)
    subprocess.run(["umount", place], check=True)
    other.close()


def test_views_are_left_until_they_are_closed(place: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    views = OverlayViews()
    assert not views.left(place)
    views.open(source, place / "001")
    assert views.left(place)
    views.close(place)
    assert not views.left(place)
    place.mkdir()
    assert views.left(place), "killed between making the folder and mounting on it"


def test_plain_folders_are_nobodys_to_remove(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert FolderVolumes().left(tmp_path) is None
    assert not PlainViews().left(tmp_path)
