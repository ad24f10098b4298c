"""Compare the whole pipeline, as a person types it, with the same number of bare containers.

The science is trivial, so what is measured is everything around it. Rounds of both are interleaved
in one run, because the machine's own speed drifts. Targets: ratio at most 2.0, and at most 0.3 s of
CPU for ``orch --help``.
"""

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import docker

from orchestrator.domain.image import image_reference

ROOT = Path(__file__).parents[1]
ORCH = Path(sys.executable).parent / "orch"
TASK = ROOT / "tests/data/bench_task"
ROUNDS = 5
HELP_RUNS = 9
MAX_RATIO = 2.0
MAX_HELP_CPU = 0.3
_RUN_LABEL = "orch.run"


def run(argv: Sequence[str | Path], env: Mapping[str, str]) -> str:
    """Run a command to its end; show what it said only if it failed."""
    done = subprocess.run(
        argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, argv))} ended with {done.returncode}\n{done.stderr}")
    return done.stdout


def seconds_since(start: float) -> float:
    return time.perf_counter() - start


def pipeline(task: Path, env: Mapping[str, str]) -> float:
    """Explore, replay, validate and score three checkpoints; return wall seconds."""
    start = time.perf_counter()
    explored = run([ORCH, "explore", task, "--agent", "scripted", "--model", "none", "--json"], env)
    run([ORCH, "replay", json.loads(explored)[0]["id"]], env)
    return seconds_since(start)


def bare(containers: int, env: Mapping[str, str]) -> float:
    """Run that many containers that do nothing; return wall seconds."""
    start = time.perf_counter()
    image = image_reference("cpu-numpy")
    for _ in range(containers):
        run(["docker", "run", "--rm", "--network", "none", image, "true"], env)
    return seconds_since(start)


def containers_created(runs: Path, since: float) -> int:
    """Count the containers that the engine made for the runs in ``runs`` since that wall time."""
    ids = {json.loads(plan.read_text()).get("run_id") for plan in runs.rglob("plan.json")}
    client = docker.from_env()
    events = client.events(
        since=since,
        until=time.time(),
        decode=True,
        filters={"type": "container", "event": "create"},
    )
    labels = [event["Actor"]["Attributes"].get(_RUN_LABEL) for event in events]
    client.close()
    return sum(label in ids for label in labels)


def help_cpu(env: Mapping[str, str]) -> float:
    """Return the CPU seconds of one ``orch --help``."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run([ORCH, "--help"], env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Run all rounds, print the figures, return 1 where a target is missed."""
    if shutil.which("docker") is None:
        raise SystemExit("the bare runs need the docker command: apt-get install docker.io")
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as scratch:
        folder = Path(scratch)
        env = {**os.environ, **{f"ORCH_{n.upper()}": str(folder / n) for n in ("runs", "assets")}}
        task = folder / "bench_task"
        shutil.copytree(TASK, task)
        run([ORCH, "images", "build", "cpu-numpy"], env)
        run([ORCH, "task", "prepare", task], env)
        since = time.time()
        pipeline(task, env)  # warms every cache, and shows how many containers it takes
        containers = containers_created(folder / "runs", since)
        bare(1, env)
        ours, theirs = [], []
        for number in range(1, ROUNDS + 1):
            ours.append(pipeline(task, env))
            theirs.append(bare(containers, env))
            print(f"round {number}: pipeline {ours[-1]:.2f} s, bare {theirs[-1]:.2f} s", flush=True)
        cpu = statistics.median(help_cpu(env) for _ in range(HELP_RUNS))
    ratio = statistics.median(ours) / statistics.median(theirs)
    print(f"containers per pipeline: {containers}")
    print(f"ratio of medians: {ratio:.2f} (target at most {MAX_RATIO})")
    print(f"orch --help: {cpu:.2f} CPU s, median of {HELP_RUNS} (target at most {MAX_HELP_CPU})")
    return int(ratio > MAX_RATIO or cpu > MAX_HELP_CPU)


if __name__ == "__main__":
    sys.exit(main())
