"""One whole run whose containers hold still, phase by phase, while a test looks at them."""

import dataclasses
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import override

from orchestrator.domain.container import (
    ContainerSpec,
    EngineIdentity,
    ExecResult,
    HostAbilities,
    ImageIdentity,
)
from orchestrator.domain.roles import Phase
from orchestrator.errors import ContainerLostError
from orchestrator.evidence.context import Context
from orchestrator.pipeline import jobs
from orchestrator.ports import Container, ContainerEngine, LogSink, Views
from orchestrator.sandbox import INSTANCE_LABEL, PHASE_LABEL
from tests.e2e.rig import PUBLISH, Rig, until

HOLD = "while [ ! -e /tmp/go ]; do sleep .05; done\n"
SCORED = """echo '{"status": "scored", "metrics": {"score": 1}}' > /out/summary.json
"""
LIMITS = {"memory": "256m", "shm": "16m", "tmp": "32m", "pids": 64, "disk": "64m", "cpus": 1}


class Recorder(ContainerEngine):
    """The real engine; it remembers what was asked of it."""

    def __init__(self, engine: ContainerEngine) -> None:
        self._engine = engine
        self.specs: dict[str, ContainerSpec] = {}

    @override
    def create(self, spec: ContainerSpec) -> Container:
        made = self._engine.create(spec)
        self.specs[made.id] = spec
        return made

    @override
    def identity(self) -> EngineIdentity:
        return self._engine.identity()

    @override
    def abilities(self) -> HostAbilities:
        return self._engine.abilities()

    @override
    def image(self, reference: str) -> ImageIdentity:
        return self._engine.image(reference)

    @override
    def image_files(self, reference: str) -> Iterator[Any]:
        return self._engine.image_files(reference)

    @override
    def find(self, labels: Mapping[str, str]) -> tuple[Container, ...]:
        return self._engine.find(labels)

    @override
    def close(self) -> None:
        self._engine.close()


class RecordedViews(Views):
    """The real views; it remembers what each one shows, for the host closes its side early."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self.sources: dict[Path, Path] = {}

    @override
    def relaxations(self) -> tuple[str, ...]:
        return self._views.relaxations()

    @override
    def open(self, source: Path, folder: Path) -> Path:
        view = self._views.open(source, folder)
        self.sources[view] = source
        return view

    @override
    def close(self, folder: Path) -> None:
        self._views.close(folder)

    def again(self, spec: ContainerSpec, folder: Path) -> ContainerSpec:
        """Describe the same container with views opened anew below ``folder``."""
        mounts = []
        for number, mount in enumerate(spec.mounts):
            view = next((v for v in self.sources if mount.source.is_relative_to(v)), None)
            if view is not None:
                opened = self._views.open(self.sources[view], folder / str(number))
                source = opened / mount.source.relative_to(view)
                mounts.append(dataclasses.replace(mount, source=source))
            else:
                mounts.append(mount)
        return dataclasses.replace(spec, mounts=tuple(mounts))


class Unheard:
    """Takes output and forgets it."""

    def write(self, stream: str, data: bytes) -> None:
        """Nobody listens."""


@dataclass
class Held:
    """A phase's real container, running and waiting."""

    ctx: Context
    phase: Phase
    container: Container
    spec: ContainerSpec
    views: RecordedViews

    @property
    def user(self) -> str:
        uid, gid = self.ctx.users.agent
        return f"{uid}:{gid}"

    def execute(self, argv: tuple[str, ...], **env: str) -> ExecResult:
        return run_in(self.container, argv, self.user, env)

    def sh(self, command: str) -> str:
        """What a command prints."""
        return self.execute(("bash", "-c", command)).output.decode("utf-8", "replace")

    @contextmanager
    def twin(self, *argv: str, sink: LogSink | None = None) -> Iterator[Container]:
        """A further container of the same description, started."""
        name = f"orch-test-{uuid.uuid4().hex[:12]}"
        views = self.ctx.runs.root / name
        spec = dataclasses.replace(self.spec, name=name, argv=argv or self.spec.argv)
        made = self.ctx.engine.create(self.views.again(spec, views))
        try:
            made.start(sink or Unheard())
            yield made
        finally:
            made.remove()
            self.views.close(views)


def run_in(
    container: Container, argv: tuple[str, ...], user: str, env: Mapping[str, str]
) -> ExecResult:
    return container.execute(
        argv, user=user, env=env, workdir="/tmp", timeout=300, max_output=4 * 1024**2
    )


@dataclass
class Run:
    """What is left of the run."""

    rig: Rig
    attempt: Path
    found: dict[Phase, Any] = field(default_factory=dict)

    @property
    def replay(self) -> Path:
        return self.attempt / "replay-001"


def run_held(rig: Rig, look: Callable[[Held], Any], *, run: str = "", **changes: Any) -> Run:
    """Run explore to score; call ``look`` on each phase's first container while it waits."""
    pack = rig.pack(
        run + HOLD + PUBLISH + "publish 10 0.5\n",
        steps=(
            {"run": HOLD},
            {"run": "echo '# changed' >> run.sh"},
            {"run": "/opt/harness/submit.sh"},
        ),
        validator=HOLD + "echo '{\"valid\": true}' > /out/validation.json\n",
        scorer=HOLD + SCORED,
        defaults=LIMITS,
        explore={"wall": "500s", "command_wall": "500s"},
        replay={"wall": "500s"},
        validate={"wall": "500s", "total_wall": "600s"},
        score={"wall": "500s"},
        **changes,
    )
    failures: list[BaseException] = []
    with rig.context() as plain:
        engine = Recorder(plain.engine)
        views = RecordedViews(plain.views)
        ctx = dataclasses.replace(plain, engine=engine, views=views)
        loaded, plan = jobs.plan_explore(
            ctx, pack, agent="scripted", model="none", effort="none", official=False
        )
        made: list[Path] = []

        def work() -> None:
            try:
                folder, _ = jobs.explore(ctx, loaded, plan)
                made.append(folder.root)
                jobs.replay(
                    ctx,
                    folder,
                    repeats=None,
                    again=None,
                    through=jobs.Through.SCORE,
                    official=False,
                )
            except BaseException as failure:
                failures.append(failure)
                raise

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        found = {}
        for phase in Phase:
            labels = {INSTANCE_LABEL: ctx.instance, PHASE_LABEL: phase.value}

            def running(labels: Mapping[str, str] = labels) -> Container | None:
                assert not failures, failures
                with suppress(ContainerLostError):
                    return next((c for c in engine.find(labels) if c.state().pid), None)
                return None

            container = until(running)
            assert container is not None
            held = Held(ctx, phase, container, engine.specs[container.id], views)
            try:
                found[phase] = look(held)
            except BaseException:
                ctx.stop.ask()
                container.kill()
                worker.join(60)
                raise
            held.sh("touch /tmp/go")
        worker.join(120)
        assert not failures, failures
    return Run(rig, made[0], found)
