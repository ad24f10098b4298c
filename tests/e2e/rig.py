"""A bench for whole runs: a small task pack in a folder of its own, and ``orch`` as it is typed.

Science here takes milliseconds: ``run.sh`` is the test's own text, the validator accepts any folder
that holds ``weights.txt``, the scorer reads its number.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import yaml

from orchestrator import wiring
from orchestrator.cli import app
from orchestrator.config import Settings
from orchestrator.domain.container import ContainerStatus
from orchestrator.domain.roles import Phase
from orchestrator.errors import ContainerLostError
from orchestrator.evidence.context import Context
from orchestrator.evidence.supervise import StopRequest
from orchestrator.evidence.tree import tree_digest
from orchestrator.lifecycle.machine import State
from orchestrator.pipeline import jobs
from orchestrator.ports import Container
from orchestrator.sandbox import INSTANCE_LABEL, PHASE_LABEL
from orchestrator.storage.assets import AssetStore, seal
from orchestrator.storage.layout import AttemptFolder
from orchestrator.storage.ledger import Held
from orchestrator.storage.pack import load_pack
from orchestrator.storage.supervisor import is_supervised
from receipts.verify import verify

T = TypeVar("T")

PUBLISH = """\
publish() {
  mkdir -p "$OUTPUT_DIR/checkpoints/.t$1" && echo "$2" > "$OUTPUT_DIR/checkpoints/.t$1/weights.txt"
  mv "$OUTPUT_DIR/checkpoints/.t$1" "$OUTPUT_DIR/checkpoints/checkpoint-$1"
}
"""
THREE = PUBLISH + "publish 10 0.1\npublish 20 0.3\npublish 30 0.2\n"

NOTE = """\
diff --git a/note.txt b/note.txt
new file mode 100644
--- /dev/null
+++ b/note.txt
@@ -0,0 +1 @@
+changed
"""

VALIDATOR = """\
if [ -f /ckpt/weights.txt ]; then echo '{"valid": true}' > /out/validation.json
else echo '{"valid": false, "reason": "missing_weights"}' > /out/validation.json; fi
"""
SCORER = """\
value=$(cat /ckpt/weights.txt)
echo "{\\"status\\": \\"scored\\", \\"metrics\\": {\\"score\\": $value}}" > /out/summary.json
"""
SUBMIT = ({"run": "echo '# changed' >> run.sh"}, {"run": "/opt/harness/submit.sh"})
FINAL_TOKEN = "final-role-token-5f1c"  # noqa: S105 - a marker to look for, no secret


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """What ``--json`` printed."""
        return json.loads(self.out)


@dataclass
class Rig:
    """One runs folder, one host folder, one asset store, and the pack in them."""

    root: Path
    variables: dict[str, str] = field(default_factory=dict)
    started: "list[subprocess.Popen[bytes]]" = field(default_factory=list)
    """Every ``orch`` that was left running once."""

    def __post_init__(self) -> None:
        for name in ("runs", "home", "assets", "host"):
            self.variables.setdefault(f"ORCH_{name.upper()}", str(self.root / name))

    @property
    def runs(self) -> Path:
        return Path(self.variables["ORCH_RUNS"])

    def pack(
        self,
        run: str = THREE,
        *,
        steps: Sequence[Mapping[str, str]] = SUBMIT,
        validator: str = VALIDATOR,
        scorer: str = SCORER,
        name: str = "tiny",
        folder: str = "pack",
        **changes: Any,
    ) -> Path:
        """Write a pack with its assets prepared and locked; ``changes`` update task.yaml deeply."""
        place = self.root / folder
        files = {
            "instruction.md": "Do something.\n",
            "solution/run.sh": run,
            "evaluator/score.sh": scorer,
            "validator/validate.sh": validator,
            "prepare.py": "raise SystemExit('made by the test')\n",
            "demo.yaml": yaml.safe_dump(list(map(dict, steps)), allow_unicode=True),
        }
        for path, text in files.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_text(text, encoding="utf-8")
        (place / "solution/run.sh").chmod(0o755)
        task = _deep(_task(name), changes)
        target = place / "task.yaml"
        target.write_text(yaml.safe_dump(task, allow_unicode=True, sort_keys=False))
        self._prepare(place, task)
        return place

    def _prepare(self, place: Path, task: dict[str, Any]) -> None:
        """Make each asset by hand and lock its digest."""
        made: dict[str, Path] = {}
        for asset, rule in task["assets"].items():
            folder = self.root / "made" / place.name / asset
            folder.mkdir(parents=True, exist_ok=True)
            self.fill(folder, rule["role"])
            seal(folder)
            rule["digest"] = tree_digest(folder)
            made[asset] = folder
        (place / "task.yaml").write_text(yaml.safe_dump(task, allow_unicode=True, sort_keys=False))
        pack, store = load_pack(place), AssetStore(Path(self.variables["ORCH_ASSETS"]))
        for asset, folder in made.items():
            store.adopt(pack, asset, folder, task["assets"][asset]["digest"])

    def fill(self, folder: Path, role: str) -> None:
        """Write an asset's content; a bench for other data overrides it."""
        text = FINAL_TOKEN if role in {"final", "reference"} else f"role {role}"
        (folder / "weights.txt").write_text(text + "\n")

    def orch(self, *words: str | Path, timeout: float = 120) -> Done:
        """Run ``orch`` to its end."""
        done = subprocess.run(
            self._argv(words),
            env=self._env(),
            capture_output=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    def call(self, *words: str | Path) -> Done:
        """Run ``orch`` to its end in this process: the same but for the start of an interpreter."""
        out, err = StringIO(), StringIO()
        with patch.dict(os.environ, self.variables), redirect_stdout(out), redirect_stderr(err):
            code = app.run([str(word) for word in words])
        return Done(int(code), out.getvalue(), err.getvalue())

    def start(self, *words: str | Path) -> "subprocess.Popen[bytes]":
        """Start ``orch`` in a session of its own and leave it running."""
        process = subprocess.Popen(
            self._argv(words),
            env=self._env(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def stop_what_is_left(self) -> None:
        """Kill whatever a test that failed has left running: it is no part of the next one."""
        for process in self.started:
            if process.poll() is None:
                kill_group(process)
                self._kill_keepers(self.runs)
            process.communicate()

    def _argv(self, words: Sequence[str | Path]) -> list[str]:
        return [sys.executable, "-m", "orchestrator", *map(str, words)]

    def _env(self) -> dict[str, str]:
        return {**os.environ, **self.variables}

    def settings(self) -> Settings:
        """What ``orch`` reads out of its environment here."""
        return Settings.from_environment(self.variables)

    @contextmanager
    def context(self, stop: StopRequest | None = None) -> Iterator[Context]:
        """What a command works with, wired up in this process."""
        wired = wiring.context(
            self.settings(), stop or StopRequest(), lambda _: None, lambda _: None
        )
        try:
            yield wired
        finally:
            wired.engine.close()

    def containers(self) -> list[Container]:
        """Every container of this runs folder that the engine knows, ended ones too."""
        with self.context() as ctx:
            return list(ctx.engine.find({INSTANCE_LABEL: ctx.instance}))

    def runs_now(self, phase: Phase | None = None) -> bool:
        """Tell whether a container runs, of this phase where one is given.

        The engine lists a container a moment before it answers for it: that one is not there yet.
        """
        for container in self.containers():
            with suppress(ContainerLostError):
                wanted = phase is None or container.labels[PHASE_LABEL] == phase
                if wanted and container.state().status is ContainerStatus.RUNNING:
                    return True
        return False

    def mounts(self) -> list[str]:
        """Every mount below this bench."""
        table = Path("/proc/self/mounts").read_text()
        return [line.split()[1] for line in table.splitlines() if f" {self.root}/" in line]

    def images(self) -> list[Path]:
        """Every image file of a volume."""
        return sorted(self.runs.rglob(".*.img"))

    def leave(self, process: "subprocess.Popen[bytes]") -> None:
        """Press Ctrl-C twice; two signals that are pending at once would count as one."""
        kill_group(process, signal.SIGINT)
        until(lambda: "stopping" in (self.runs / "orch.log").read_text())
        kill_group(process, signal.SIGINT)

    def keepers(self, run: Path | None = None) -> list[int]:
        """Name every process that sees to a run after its supervisor: watchdogs, adopters."""
        place = str(self.runs if run is None else run).encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            words = _command_line(process)
            if b"adopt" in words and any(w == place or w.startswith(place + b"/") for w in words):
                found.append(int(process.name))
        return found

    def kill_for_good(self, process: "subprocess.Popen[bytes]", run: Path) -> None:
        """Kill a started ``orch`` hard, and whoever would take its run over."""
        if process.poll() is None:
            kill_group(process)
        process.communicate()
        until(lambda: not self._kill_keepers(run) and not is_supervised(run))

    def _kill_keepers(self, run: Path) -> list[int]:
        found = self.keepers(run)
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found

    def settled(self, run: Path) -> Path:
        """Wait until a run that somebody goes on with is committed, and nobody sees to it."""
        until((run / ".complete").exists)
        until(lambda: not self.keepers(run))
        return run

    def nothing_left(self) -> None:
        """Assert that what has ended has let go of everything it held."""
        until(lambda: not self.keepers())
        assert self.containers() == []
        assert self.mounts() == []
        assert self.images() == []
        until(lambda: not self.reserved())  # a process that ends loses its name before its locks
        if any(self.runs.glob("*/attempt-*")):
            faults = verify(self.runs).faults
            assert not faults, faults

    def reserved(self) -> tuple[Held, ...]:
        """What is reserved on this bench's host."""
        with self.context() as ctx:
            return ctx.ledger.held()

    def enter(self, pack: Path, ctx: Context | None = None) -> Path:
        """Submit a small patch and return the attempt's folder; no container is needed."""
        note = self.root / "note.patch"
        note.write_text(NOTE)
        with nullcontext(ctx) if ctx else self.context() as wired:
            folder, state = jobs.submit_patch(wired, pack, note, official=False)
        assert state is State.SUBMITTED
        return folder.root

    def run(self, run: str, **changes: Any) -> Path:
        """Replay a pack with this ``run.sh`` through validation; return the replay's folder."""
        attempt = self.enter(self.pack(run, **changes))
        with self.context() as ctx:
            return self.replay_in(ctx, attempt)

    def replay_in(self, ctx: Context, attempt: Path) -> Path:
        """Replay once more in this process; return the newest replay's folder."""
        jobs.replay(
            ctx,
            AttemptFolder(attempt),
            repeats=None,
            again=None,
            through=jobs.Through.VALIDATE,
            official=False,
        )
        return max(attempt.glob("replay-*"))

    def explore(self, pack: Path, *words: str) -> Path:
        """Explore and return the attempt's folder."""
        done = self.call("explore", pack, "--json", *words)
        assert done.code == 0, done.err
        return Path(done.json()[-1]["path"])

    def replay(self, attempt: Path, *words: str) -> Path:
        """Replay and return the newest replay's folder, whatever came of it."""
        done = self.call("replay", attempt, *words)
        assert done.code == 0, done.err
        return max(attempt.glob("replay-*"))


def _command_line(process: Path) -> list[bytes]:
    """Read the words of a process; there are none of one that is gone, or a zombie."""
    try:
        return (process / "cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def until(seen: Callable[[], T], timeout: float = 60) -> T:
    """Look again until ``seen`` gives something true, and return that."""
    give_up = time.monotonic() + timeout
    while not (found := seen()):
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.02)
    return found


def snapshot(folder: Path) -> dict[str, bytes]:
    """Read every file below a folder."""
    # The kernel writes to the image of a mounted volume whenever it likes.
    files = (p for p in sorted(folder.rglob("*")) if p.is_file() and p.suffix != ".img")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def has(run: Path, event: str) -> bool:
    """Tell whether a run's journal holds ``event``; a run that is not there yet holds none."""
    journal = run / "lifecycle.jsonl"
    return journal.exists() and f'"event":"{event}"' in journal.read_text()


def events(run: Path) -> list[dict[str, Any]]:
    """Read a run's journal."""
    return [json.loads(line) for line in (run / "lifecycle.jsonl").read_text().splitlines()]


def last(run: Path, event: str) -> dict[str, Any]:
    """Return the data of the latest ``event`` of a run."""
    found = [line["data"] for line in events(run) if line["event"] == event]
    assert found, f"no {event} in {[line['event'] for line in events(run)]}"
    return dict(found[-1])


def final(run: Path) -> str:
    """Return the name of a run's last event."""
    return str(events(run)[-1]["event"])


def kill_group(process: "subprocess.Popen[bytes]", number: int = signal.SIGKILL) -> None:
    """Signal a started ``orch`` and everything in its session."""
    os.killpg(process.pid, number)


def _task(name: str) -> dict[str, Any]:
    return {
        "schema": "orch.task/1",
        "name": name,
        "title": "A tiny task",
        "workspace": {"from": "solution/"},
        "assets": {
            "models/start": {
                "role": "anchor",
                "also": ["score"],
                "source": {"prepare": "prepare.py"},
            },
            "data/train": {"role": "train", "source": {"prepare": "prepare.py"}},
            "data/final": {"role": "final", "source": {"prepare": "prepare.py"}},
        },
        "defaults": {
            "image": "cpu-numpy",
            "cpus": 1,
            "memory": "256m",
            "shm": "16m",
            "tmp": "32m",
            "pids": 64,
            "disk": "32m",
        },
        "explore": {"wall": "60s", "command_wall": "30s"},
        "replay": {"wall": "60s", "reserve": "5s"},
        "validate": {
            "wall": "30s",
            "total_wall": "2m",
            "validator": {"command": "validator/validate.sh"},
        },
        "score": {"wall": "30s", "command": "evaluator/score.sh", "metric": "score"},
        "script": "demo.yaml",
    }


def _deep(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Lay changes over a nested dictionary."""
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            _deep(base[key], value)
        else:
            base[key] = value
    return base
