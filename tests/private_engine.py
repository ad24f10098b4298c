"""A Docker Engine of the tests' own, with its own folders: stopping or breaking it harms nobody.

It believes that the NVIDIA Container Toolkit is installed, so that it takes requests for GPUs: the
engine looks for one program in its PATH when it starts, and a script is put there. What that would
do, make the devices appear inside, a made-up ``nvidia-smi`` in the image does for it, which shows
what the engine itself has told the container.
"""

import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.adapters.engine_process import incarnation_of
from orchestrator.domain.image import image_reference
from orchestrator.errors import EngineUnavailableError

_PROGRAMS = ("dockerd", "containerd", "runc", "docker-init")
_HOOK = "nvidia-container-runtime-hook"
_TOOLS = ("bash", "sh", "cat", "mkdir", "mv", "sed", "sleep", "tr", "true")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/sbin"
IMAGE = image_reference("cpu-numpy")
_SMI = """\
#!/bin/sh
# Only an engine that has understood the request for GPUs sets the capabilities.
[ -n "$NVIDIA_DRIVER_CAPABILITIES" ] || exit 0
number=0
for uuid in $(echo "$NVIDIA_VISIBLE_DEVICES" | tr , ' '); do
  echo "GPU $number: NVIDIA H100 80GB HBM3 (UUID: $uuid)"
  number=$((number + 1))
done
"""


def require_private_engine() -> None:
    """Skip, with the reason, where no such engine can be started."""
    if os.geteuid() != 0:
        pytest.skip("an engine of our own takes root")
    absent = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if absent:
        pytest.skip(f"not installed: {', '.join(absent)}")


@dataclass(frozen=True)
class PrivateEngine:
    """One that runs."""

    address: str

    def docker(self, *words: str) -> str:
        """Be somebody else at this engine."""
        return _docker("--host", self.address, *words)

    def stranger(self, *options: str) -> str:
        """Start a container that has nothing to do with orch; return its id."""
        words = ("run", "--detach", "--network", "none", *options, IMAGE, "sleep", "600")
        return self.docker(*words)


def _docker(*words: str) -> str:
    command = ("docker", *words)
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return done.stdout.strip()


@contextmanager
def private_engine(*, gpus: bool) -> Iterator[PrivateEngine]:
    """Run an engine that holds an ``IMAGE`` of a shell; ``gpus`` lets it grant some."""
    with tempfile.TemporaryDirectory(prefix="orch-engine-") as name:
        folder = Path(name)
        tools = folder / "bin"
        tools.mkdir()
        if gpus:
            _script(tools / _HOOK, "#!/bin/sh\nexit 0\n")
        address = f"unix://{folder}/docker.sock"
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    *("dockerd", "--host", address, "--data-root", f"{name}/data"),
                    *("--exec-root", f"{name}/exec", "--pidfile", f"{name}/pid"),
                    *("--bridge", "none", "--iptables=false", "--ip-forward=false"),
                ],
                env={**os.environ, "PATH": f"{tools}:{_PATH}"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                _wait_until_up(address, process, folder / "log")
                engine = PrivateEngine(address)
                _load(engine, folder)
                yield engine
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(60)


def _wait_until_up(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    give_up = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < give_up:
        with suppress(EngineUnavailableError, subprocess.CalledProcessError):
            if incarnation_of(address) and _docker("--host", address, "version"):
                return
        time.sleep(0.1)
    pytest.fail(f"the engine did not start: {log.read_text(errors='replace')[-2000:]}")


def _load(engine: PrivateEngine, folder: Path) -> None:
    """Make ``IMAGE`` out of a few programs of this host: loading the true one takes far longer."""
    archive, tool = folder / "image.tar", folder / "nvidia-smi"
    _script(tool, _SMI)
    content = {"bin/nvidia-smi": tool}
    for name in _TOOLS:
        found = shutil.which(name, path=_PATH)
        assert found is not None, name
        content[f"bin/{name}"] = Path(found)
        content |= {str(library).lstrip("/"): library for library in _libraries(found)}
    with tarfile.open(archive, "w") as tar:
        for name, path in content.items():
            tar.add(path.resolve(), name)
    engine.docker("import", str(archive), IMAGE)
    archive.unlink()


def _libraries(program: str) -> set[Path]:
    """Return what the loader needs for a program, by the names that it asks for."""
    command = ("ldd", program)
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    words = (word for line in done.stdout.splitlines() for word in line.split())
    return {Path(word) for word in words if word.startswith("/")}


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
