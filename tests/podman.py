"""A Podman service of the tests' own: its storage, locks and socket touch nothing of the host's."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from orchestrator.adapters.engine_process import incarnation_of
from orchestrator.adapters.image_builder import ImageBuilder
from orchestrator.config import Settings, bundled
from orchestrator.domain.image import image_reference
from orchestrator.errors import EngineUnavailableError

_PROGRAMS = ("podman", "conmon", "runc", "catatonit")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/libexec/podman:/usr/bin"
_CONFIGURATION = """\
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
runtime = "runc"
"""


PODMAN_IMAGE = image_reference("cpu-numpy")


def save_image(archive: Path) -> Path:
    """Write ``PODMAN_IMAGE`` as the usual engine holds it, made if it is not there."""
    settings = Settings.from_environment()
    builder = ImageBuilder(settings.engine_address, bundled("containers"), settings.wheels)
    try:
        builder.build((PODMAN_IMAGE,), lambda _: None)
    finally:
        builder.close()
    subprocess.run(["docker", "save", "--output", archive, PODMAN_IMAGE], check=True, timeout=300)
    return archive


def require_podman() -> None:
    """Skip, with the reason, where no such service can be started."""
    if os.geteuid() != 0:
        pytest.skip("a Podman service of our own takes root")
    absent = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if absent:
        pytest.skip(f"not installed: {', '.join(absent)}")


@contextmanager
def podman_service(images: Path) -> Iterator[str]:
    """Run one with the images of an archive (``docker save``); yield its address."""
    with tempfile.TemporaryDirectory(prefix="orch-podman-") as name:
        folder = Path(name)
        configuration = folder / "containers.conf"
        configuration.write_text(_CONFIGURATION)
        address = f"unix://{folder}/podman.sock"
        podman = [
            *("podman", "--root", f"{name}/root", "--runroot", f"{name}/run"),
            *("--tmpdir", f"{name}/tmp", "--storage-driver", "overlay"),
        ]
        env = {**os.environ, "CONTAINERS_CONF": str(configuration)}
        subprocess.run(
            [*podman, "load", "--quiet", "--input", images],
            env=env,
            check=True,
            capture_output=True,
            timeout=300,
        )
        with (folder / "log").open("wb") as log:
            service = subprocess.Popen(
                [*podman, "system", "service", "--time=0", address],
                env=env,
                cwd=folder,  # conmon leaves files there
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            _wait_until_it_listens(address, service, folder / "log")
            yield address
        finally:
            subprocess.run(
                [*podman, "rm", "--force", "--all"], env=env, check=False, capture_output=True
            )
            service.terminate()
            service.wait(30)
            _end_what_names(folder)
            _unmount_all_below(folder)


def _wait_until_it_listens(address: str, service: "subprocess.Popen[bytes]", log: Path) -> None:
    give_up = time.monotonic() + 60
    while not _listens(address):
        assert service.poll() is None, log.read_text()
        assert time.monotonic() < give_up, log.read_text()
        time.sleep(0.05)


def _listens(address: str) -> bool:
    try:
        incarnation_of(address)
    except EngineUnavailableError:
        return False
    return True


def _end_what_names(folder: Path) -> None:
    """End the monitors of commands that have ended: they stay for minutes, then write there."""
    for arguments in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(ProcessLookupError, FileNotFoundError):
            if f"{folder}/".encode() in arguments.read_bytes():
                os.kill(int(arguments.parent.name), signal.SIGKILL)


def _unmount_all_below(folder: Path) -> None:
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in reversed([it for it in mounts if it.startswith(f"{folder}/")]):
        subprocess.run(["umount", "--lazy", mount], check=False)  # a clean-up may be at it, too
