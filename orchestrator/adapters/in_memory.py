"""A container engine in memory, for tests and for trying a plan out. Never official.

A container runs a *program*: a Python function in a thread of its own that is given the inside of
the container and returns an exit code. What is to go wrong, a test asks the engine for:
``kill_by_third_party``, ``lose``, ``go_down`` and ``come_back``, ``refuse_pauses``.
"""

import itertools
from collections.abc import Iterator, Mapping
from hashlib import sha256
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO

from typing_extensions import override

from orchestrator.adapters.fake_clock import FakeClock
from orchestrator.adapters.in_memory_container import (
    Command,
    EndedError,
    InMemoryContainer,
    Inside,
    Program,
    World,
    no_commands,
    run_until_killed,
)
from orchestrator.domain.container import (
    ContainerSpec,
    ContainerStatus,
    DeviceClaim,
    EngineIdentity,
    HostAbilities,
    ImageIdentity,
)
from orchestrator.errors import InfrastructureError, UsageError
from orchestrator.ports import Container, ContainerEngine

__all__ = [
    "Command",
    "EndedError",
    "FakeClock",
    "InMemoryEngine",
    "Inside",
    "Program",
    "no_commands",
    "run_until_killed",
]


class InMemoryEngine(ContainerEngine):
    """An engine whose containers are threads.

    Args:
        program: what every container runs; it finds out which one by ``inside.spec``.
        command: what ``execute`` does: exit code and output. It raises TimeoutError where the
            command would outlive its limit.
        images: the images it holds, each with its files by path.
        clock: the clock its records carry.
    """

    def __init__(
        self,
        program: Program = run_until_killed,
        *,
        command: Command = no_commands,
        images: Mapping[str, Mapping[str, bytes]],
        clock: FakeClock,
    ) -> None:
        self._world = World(program, command, clock)
        self._images = images
        self._numbers = itertools.count(1)
        self._claims: tuple[DeviceClaim, ...] = ()

    # -- what may go wrong

    def kill_by_third_party(self, name: str, signal: str = "KILL") -> None:
        """Send a signal as somebody else's ``docker kill`` does."""
        self._named(name).deliver(signal)

    def lose(self, name: str) -> None:
        """Forget a container, as after somebody else's ``docker rm -f``."""
        with self._world.changed:
            self._named(name).vanish()

    def go_down(self) -> None:
        """Stop answering; containers stand where they stood."""
        with self._world.changed:
            self._world.up = False
            self._world.changed.notify_all()

    def come_back(self) -> None:
        """Answer again as a new incarnation: what ran is shown as exited with 0, seen by nobody."""
        with self._world.changed:
            self._world.up = True
            self._world.incarnation += 1
            for container in tuple(self._world.containers.values()):
                container.end_unseen()
            self._world.changed.notify_all()

    def refuse_pauses(self, times: int) -> None:
        """Refuse the next ``times`` pauses."""
        self._world.refused_pauses = times

    # -- the engine

    @override
    def identity(self) -> EngineIdentity:
        self._world.answer()
        return EngineIdentity(
            engine_id="in-memory",
            version="1",
            address="memory:",
            incarnation=self._world.incarnation_name,
            kind="in-memory",
            official=False,
        )

    @override
    def abilities(self) -> HostAbilities:
        self._world.answer()
        return HostAbilities(
            cpus=64,
            memory=2**40,
            runtimes=("runc",),
            cgroup_version=2,
            cpuset=True,
            pids_limit=True,
            swap_limit=True,
            seccomp=True,
            rootless=False,
            storage_driver="memory",
        )

    @override
    def image(self, reference: str) -> ImageIdentity:
        self._world.answer()
        if reference not in self._images:
            raise UsageError(
                f"the engine has no image {reference!r}",
                remedy=f"run `orch images build {reference}`",
            )
        digest = sha256(repr(sorted(self._images[reference].items())).encode()).hexdigest()
        return ImageIdentity(reference, f"image:v1:sha256:{digest}", f"sha256:{digest}", ())

    @override
    def image_files(self, reference: str) -> Iterator[tuple[str, IO[bytes]]]:
        self.image(reference)
        for path, content in self._images[reference].items():
            yield path, BytesIO(content)

    @override
    def copy_out(self, reference: str, folder: str, into: Path) -> None:
        self.image(reference)
        below = PurePosixPath(folder)
        found = {
            PurePosixPath(path).relative_to(below.parent): content
            for path, content in self._images[reference].items()
            if below in PurePosixPath(path).parents
        }
        if not found:
            raise UsageError(f"image {reference} has no {folder}")
        for path, content in found.items():
            (into / path).parent.mkdir(parents=True, exist_ok=True)
            (into / path).write_bytes(content)
            (into / path).chmod(0o755 if path.suffix == ".sh" else 0o644)

    @override
    def create(self, spec: ContainerSpec) -> Container:
        self._world.answer()
        with self._world.changed:
            if spec.image not in self._images:
                raise InfrastructureError(f"no such image: {spec.image}")
            if any(it.name == spec.name for it in tuple(self._world.containers.values())):
                raise InfrastructureError(f"the name {spec.name} is in use")
            for mount in spec.mounts:
                if not mount.source.exists():
                    raise InfrastructureError(f"bind source path does not exist: {mount.source}")
            container_id = sha256(f"{next(self._numbers)}".encode()).hexdigest()
            files = self._images[spec.image]
            self._world.containers[container_id] = InMemoryContainer(
                self._world, container_id, spec, files
            )
            return self._world.containers[container_id]

    @override
    def find(self, labels: Mapping[str, str]) -> tuple[Container, ...]:
        self._world.answer()
        return tuple(
            it
            for it in tuple(self._world.containers.values())
            if labels.items() <= dict(it.labels).items()
        )

    @override
    def device_claims(self) -> tuple[DeviceClaim, ...]:
        self._world.answer()
        running = {ContainerStatus.RUNNING, ContainerStatus.PAUSED}
        own = (
            DeviceClaim(it.id, it.name, it.labels, every=False, devices=it.spec.gpu_uuids)
            for it in tuple(self._world.containers.values())
            if it.spec.gpu_uuids and it.state().status in running
        )
        return (*own, *self._claims)

    @override
    def close(self) -> None:
        """Nothing is held open."""

    def claim_devices(self, *claims: DeviceClaim) -> None:
        """Say what containers of other people were given; those named before are gone."""
        self._claims = claims

    def _named(self, name: str) -> InMemoryContainer:
        return next(it for it in tuple(self._world.containers.values()) if it.name == name)
