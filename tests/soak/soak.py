"""A worker that runs tiny pipelines one after the other, beside one long replay; what grows?

The worker is ``orch queue run --forever``, fed with explorations of which each is followed by its
replay and its scoring. Beside it one ``orch replay`` lasts for as long as the soak does, with 2 KiB
of output and one telemetry row a second. Every few seconds both processes are sampled.

Bounds:

* worker and supervisor of the long replay, from the first third to the last (the first fifth of all
  samples is warm-up): memory by 8 MiB, descriptors by 2, threads by 2; the worker reads campaign
  log and queue whole, and so takes some KiB more with each job that they list;
* at no time more than 64 descriptors and 24 threads in either;
* 64 files and 0.5 MiB in the runs folder for each job that ended, its containers' output included;
* 24 files in the host folder at any time; 12 loop devices, and 8 containers of ours;
* of the long replay: 20 MiB of logs, 8 MiB of telemetry;
* in the end: every job ended by the candidate's doing, every receipt verifies, and no container,
  mount, loop device, image file or reservation of ours is left.
"""

import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from orchestrator.domain.queue import JobStatus
from orchestrator.evidence.context import Context
from orchestrator.sandbox import INSTANCE_LABEL
from tests.e2e.rig import PUBLISH, Rig, last, until
from tests.soak.gauge import (
    DESCRIPTORS,
    MEMORY,
    THREADS,
    Check,
    Series,
    checks_of,
    folder,
    loop_devices,
)

EVERY = 0.2
"""Seconds from one look at the processes to the next."""
_FEED_EVERY = 10
"""Looks at the processes for one at all the rest."""
_QUICK = PUBLISH + "publish 10 0.5\n"
_LONG = """\
publish 10 0.5
line=$(printf '%1023s' | tr ' ' x)
while :; do echo "$line"; echo "$line" >&2; sleep 1; done
"""
_GROWTH = {MEMORY: 8 * 1024.0, DESCRIPTORS: 2.0, THREADS: 2.0}
_MOST = {DESCRIPTORS: 64.0, THREADS: 24.0}
_MIB = 1024.0**2
_SMALL = {"disk": "8m", "memory": "128m"}
_AHEAD = 2
_GRACE = 180.0


@dataclass
class Soak:
    """One soak in a folder of its own. ``say`` takes a line of progress at a time."""

    root: Path
    seconds: float
    say: Callable[[str], None]
    rig: Rig = field(init=False)
    worker: Series = field(default_factory=lambda: Series("worker", idles=True))
    replay: Series = field(default_factory=lambda: Series("long replay", idles=False))
    host_files: int = 0
    loops: int = 0
    containers: int = 0

    def __post_init__(self) -> None:
        self.rig = Rig(self.root)

    def run(self) -> list[Check]:
        """Soak, then compare everything with its bound."""
        rig = self.rig
        quick = rig.pack(_QUICK, name="quick", folder="quick", defaults=_SMALL)
        long = rig.pack(
            PUBLISH + _LONG,
            name="long",
            folder="long",
            defaults=_SMALL,
            replay={"wall": f"{self.seconds:.0f}s", "reserve": "1s"},
            telemetry={"every": "1s"},
        )
        attempt = rig.enter(long)
        with self._started("worker", "queue", "run", "--forever") as worker:
            with self._started("replay", "replay", str(attempt), "--through", "validate") as replay:
                self._look(quick, worker, replay)
                assert replay.wait(_GRACE) == 0, self._said("replay")
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(_GRACE) == 0, self._said("worker")
        return [*self._growths(), *self._sizes(attempt), *self._endings(attempt)]

    @contextmanager
    def _started(self, name: str, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
        """Run ``orch`` with its output in a file: a pipe that nobody reads would hold it up."""
        with (self.root / f"{name}.log").open("wb") as output:
            process = subprocess.Popen(
                self.rig._argv(words),
                env=self.rig._env(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                    process.wait(_GRACE)

    def _said(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text(errors="replace")[-2000:]

    def _look(
        self, quick: Path, worker: "subprocess.Popen[bytes]", replay: "subprocess.Popen[bytes]"
    ) -> None:
        """Feed the worker and sample, until the long replay has ended."""
        with self.rig.context() as ctx:
            for turn in count():
                if turn % _FEED_EVERY == 0:
                    self._feed(quick)
                    self._look_around(ctx)
                assert worker.poll() is None, self._said("worker")
                self.worker.look(worker.pid)
                self.replay.look(replay.pid)
                if replay.poll() is not None:
                    return
                with suppress(subprocess.TimeoutExpired):
                    replay.wait(EVERY)

    def _look_around(self, ctx: Context) -> None:
        found = len(ctx.engine.find({INSTANCE_LABEL: ctx.instance}))
        self.containers = max(self.containers, found)
        self.host_files = max(self.host_files, folder(self.root / "host")[0])
        self.loops = max(self.loops, loop_devices(self.root))

    def _feed(self, quick: Path) -> None:
        """Keep a few explorations waiting, and tell how far it is."""
        jobs = self._jobs()
        if sum(job["status"] == JobStatus.QUEUED for job in jobs) < _AHEAD:
            done = self.rig.call("queue", "add", quick, "--repeats", str(_AHEAD))
            assert done.code == 0, done.err
        if self.worker.rows and self.replay.rows:
            facts = f"worker {self.worker.rows[-1]}; long replay {self.replay.rows[-1]}"
            self.say(f"{_ended(jobs)} jobs ended; {facts}")

    def _jobs(self) -> list[dict[str, str]]:
        listed = self.rig.call("queue", "list", "--json")
        assert listed.code == 0, listed.err
        return list(listed.json())

    def _growths(self) -> Iterator[Check]:
        for series in (self.worker, self.replay):
            yield from checks_of(series, _GROWTH)
            for figure, bound in _MOST.items():
                yield Check(f"{series.name}: most {figure}", series.most(figure), bound)

    def _sizes(self, attempt: Path) -> Iterator[Check]:
        files, size = folder(self.rig.runs)
        own_files, own_size = folder(attempt)
        ended = _ended(self._jobs())
        self.say(f"{ended} jobs ended in all")
        yield Check("files in runs for each job", (files - own_files) / ended, 64)
        yield Check("MiB in runs for each job", (size - own_size) / ended / _MIB, 0.5)
        yield Check("files in the host folder", self.host_files, 24)
        yield Check("loop devices", self.loops, 12)
        yield Check("containers", self.containers, 8)
        replay = max(attempt.glob("replay-*"))
        yield Check("MiB of logs", folder(replay / "logs")[1] / _MIB, 20)
        telemetry = (replay / "telemetry.jsonl").stat().st_size
        yield Check("MiB of telemetry", telemetry / _MIB, 8)

    def _endings(self, attempt: Path) -> Iterator[Check]:
        """Check that everything ended well and that nothing is left."""
        replay = max(attempt.glob("replay-*"))
        seen = last(replay, "exited")["exit"]
        assert seen["stop_reason"] == "deadline", seen
        yield Check("seconds that the long replay overran", seen["duration_s"] - self.seconds, 30)
        jobs = self._jobs()
        kinds = {JobStatus.QUEUED, JobStatus.TERMINAL_BEHAVIOR}
        yield Check("jobs that ended otherwise", sum(job["status"] not in kinds for job in jobs), 0)
        until(lambda: loop_devices(self.root) == 0)
        self.rig.nothing_left()


def _ended(jobs: Sequence[Mapping[str, str]]) -> int:
    return sum(job["status"].startswith("terminal_") for job in jobs)
