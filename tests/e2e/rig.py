"""A bench for whole runs: a small task pack in a folder of its own, and ``orch`` as a person types it.

Science here takes milliseconds: ``run.sh`` is the test's own text, the validator accepts any folder
that holds ``weights.txt``, the scorer reads its number.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from orchestrator.evidence.tree import tree_digest
from orchestrator.storage.assets import AssetStore, seal
from orchestrator.storage.pack import load_pack

PUBLISH = """\
publish() {
  mkdir -p "$OUTPUT_DIR/checkpoints/.t$1" && echo "$2" > "$OUTPUT_DIR/checkpoints/.t$1/weights.txt"
  mv "$OUTPUT_DIR/checkpoints/.t$1" "$OUTPUT_DIR/checkpoints/checkpoint-$1"
}
"""
THREE = PUBLISH + "publish 10 0.1\npublish 20 0.3\npublish 30 0.2\n"

VALIDATOR = """\
if [ -f /ckpt/weights.txt ]; then echo '{"valid": true}' > /out/validation.json
else echo '{"valid": false, "reason": "missing_weights"}' > /out/validation.json; fi
"""
SCORER = """\
value=$(cat /ckpt/weights.txt)
echo "{\\"status\\": \\"scored\\", \\"metrics\\": {\\"score\\": $value}}" > /out/summary.json
"""
SUBMIT = ({"run": "echo '# changed' >> run.sh"}, {"run": "/opt/harness/submit.sh"})
FINAL_TOKEN = "final-role-token-5f1c"


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
            text = FINAL_TOKEN if rule["role"] in {"final", "reference"} else f"role {rule['role']}"
            (folder / "weights.txt").write_text(text + "\n")
            seal(folder)
            rule["digest"] = tree_digest(folder)
            made[asset] = folder
        (place / "task.yaml").write_text(yaml.safe_dump(task, allow_unicode=True, sort_keys=False))
        pack, store = load_pack(place), AssetStore(Path(self.variables["ORCH_ASSETS"]))
        for asset, folder in made.items():
            store.adopt(pack, asset, folder, task["assets"][asset]["digest"])

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

    def start(self, *words: str | Path) -> "subprocess.Popen[bytes]":
        """Start ``orch`` in a session of its own and leave it running."""
        return subprocess.Popen(
            self._argv(words),
            env=self._env(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _argv(self, words: Sequence[str | Path]) -> list[str]:
        return [sys.executable, "-m", "orchestrator", *map(str, words)]

    def _env(self) -> dict[str, str]:
        return {**os.environ, **self.variables}

    def explore(self, pack: Path, *words: str) -> Path:
        """Explore and return the attempt's folder."""
        done = self.orch("explore", pack, "--json", *words)
        assert done.code == 0, done.err
        return Path(done.json()[-1]["path"])

    def replay(self, attempt: Path, *words: str) -> Path:
        """Replay and return the newest replay's folder, whatever came of it."""
        done = self.orch("replay", attempt, *words)
        assert done.code == 0, done.err
        return sorted(attempt.glob("replay-*"))[-1]


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
