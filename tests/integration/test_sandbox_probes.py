"""Every probe against the real containers of every phase, and against one that is not hardened.

An OPEN is allowed only where docs/security.md says so, with the reason, for that phase.
"""

import json
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from orchestrator.domain.roles import Phase
from orchestrator.evidence.capped_log import CappedLog
from tests.e2e.rig import THREE, Rig, events, last, snapshot, until
from tests.integration import probes
from tests.integration.probes import Finding, Probe
from tests.integration.real_phases import Held, Run, run_held, run_in
from tests.integration.weak_container import CANARY_PORT, log_size, open_network, weak

pytestmark = pytest.mark.docker

SECURITY = Path(__file__).parents[2] / "docs" / "security.md"
BY_ID = {probe.id: probe for probe in probes.PROBES}
HOSTILE = tuple(p for p in probes.SHARED if p.category == "output" and p.judge)
"""What a candidate may leave in /out; the host's collection is what is tried."""

OURS: Mapping[Phase, tuple[Probe, ...]] = {
    Phase.EXPLORE: tuple(p for p in probes.SHARED if p not in HOSTILE),
    Phase.REPLAY: tuple(p for p in probes.SHARED if p.category != "capture"),
    Phase.VALIDATE: tuple(p for p in probes.SHARED if p.category not in {"capture", "output"}),
    Phase.SCORE: tuple(p for p in probes.SHARED if p.category not in {"capture", "output"}),
}
NO_SUCH_THING = {
    "esc-af-alg",
    "esc-init-module",
    "esc-kexec",
    "esc-kmsg",
    "esc-sysrq",
    "fs-procfs-host-info",
    "prc-rt-sched",
    "res-nofile",
}
"""Depends on the host: a kernel without modules, kexec, sysrq, AF_ALG or DMI cannot be open."""
HOST_FILES = ("/tmp/fsm-ran", "/tmp/ext-ran", "/tmp/pwned", "/tmp/abs-esc", "/tmp/none")
"""What hostile repositories, patches and checkpoints make where they are run or followed."""


def listed() -> dict[str, set[str]]:
    """The holes that stay open, by phase, as the documentation lists them."""
    text = SECURITY.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| ([a-z, ]+) \| \S", text, re.MULTILINE)
    return {
        phase: {name for name, phases in rows if phase in phases.split(", ")} for phase in Phase
    }


@pytest.fixture(scope="module")
def canary() -> Iterator[int]:
    """A listener on this host's loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, canary: int) -> Run:
    """A run whose four containers were probed while they existed."""
    rig = Rig(tmp_path_factory.mktemp("probed"))

    def look(held: Held) -> dict[str, Finding]:
        where = {"CANARY_HOST": "127.0.0.1", "CANARY_PORT": str(canary)}
        if held.phase is Phase.EXPLORE:
            where["TMPDIR"] = "/workspace"  # hostile repositories, for the host to capture
        done = held.execute(probes.batch(OURS[held.phase]), **where)
        said = probes.parts(done.output)
        found = {p.id: probes.read(said[p.id]) for p in OURS[held.phase] if not p.judge}
        if found["esc-fd-leak"] is Finding.UNAVAILABLE:
            found["esc-fd-leak"] = safe_if(no_leak(held.container.state().pid))
        if held.phase is Phase.REPLAY:
            assert all("MADE" in said[p.id] for p in HOSTILE)
        if held.phase in OWN:
            found |= {name: judge(held) for name, judge in OWN[held.phase].items()}
        return found

    said = BY_ID["out-ansi"].command
    return run_held(
        rig, look, run=said + "\nls -A /out /tmp /workspace/.cache ~/.cache > /out/seen\n"
    )


def safe_if(good: bool) -> Finding:
    return Finding.SAFE if good else Finding.OPEN


def no_leak(pid: int) -> bool:
    """PID 1 holds nothing but its streams; seen from the host, for the container may not look."""
    links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
    return all(link.startswith(("pipe:", "/dev/null", "anon_inode")) for link in links)


def survives(name: str, held: Held) -> Finding:
    """What it sends must not end the container, nor what keeps it."""
    with held.twin() as twin:
        before = {p.pid for p in twin.processes()}
        run_in(twin, ("bash", "-c", BY_ID[name].command), held.user, {})
        return safe_if(twin.wait(1.0) is None and before <= {p.pid for p in twin.processes()})


def leaves_nothing(held: Held) -> Finding:
    """Whatever it leaves running is gone once the host has ended the container."""
    with held.twin() as twin:
        run_in(twin, ("bash", "-c", BY_ID["prc-daemon"].command), held.user, {})
        late = next(m.source for m in held.spec.mounts if m.target == "/out") / "late"
        until(late.exists)
        left = {p.pid for p in twin.processes()}
        twin.kill()
        assert twin.wait(30) is not None
        after = late.read_bytes()
        gone = not any(Path(f"/proc/{pid}").exists() for pid in left)
        return safe_if(gone and late.read_bytes() == after and len(left) > 2)


def bounded_memory(held: Held) -> Finding:
    """The bomb ends, what it is thrown at does not, and the cause is known."""
    with held.twin() as twin:
        bomb = run_in(twin, ("bash", "-c", BY_ID["res-membomb"].command), held.user, {})
        assert b"SAFE" in bomb.output.splitlines()
        assert twin.wait(0) is None
        use = twin.memory()  # of a container that is still there: its counters go with it
        assert use.limit_reached
        return safe_if(use.peak is not None and use.peak <= held.spec.limits.memory)


def bounded_log(held: Held, folder: Path) -> Finding:
    """Neither the engine's copy of the output nor ours outgrows its limit."""
    argv = ("bash", "-c", BY_ID["res-logflood"].command)
    with closing(CappedLog(folder)) as log, held.twin(*argv, sink=log) as container:
        assert container.wait(120) is not None
        engine = log_size(container.id)
    ours = sum(file.stat().st_size for file in folder.iterdir())
    return safe_if(0 < engine <= 2 * 1024**2 and 0 < ours <= 2 * held.spec.limits.log)


def flooded(held: Held) -> Finding:
    folder = held.ctx.runs.root / f"flood-{held.phase}"
    folder.mkdir()
    return bounded_log(held, folder)


Judge = Callable[[Held], Finding]
BOUNDED: Mapping[str, Judge] = {
    "prc-daemon": leaves_nothing,
    "res-membomb": bounded_memory,
    "res-logflood": flooded,
}
OWN: Mapping[Phase, Mapping[str, Judge]] = {
    Phase.EXPLORE: {
        "prc-term-pid1": lambda held: survives("prc-term-pid1", held),
        "prc-killall-timer": lambda held: survives("prc-killall-timer", held),
        **BOUNDED,
    },
    Phase.REPLAY: {n: judge for n, judge in BOUNDED.items() if n != "prc-daemon"},
}


@pytest.mark.parametrize("phase", Phase)
def test_nothing_is_open_but_what_is_listed_with_its_reason(run: Run, phase: Phase) -> None:
    found: dict[str, Finding] = run.found[phase]
    print(f"{phase}: {len(found)} probes: {probes.tally(found)}")
    assert {name for name, f in found.items() if f is Finding.OPEN} == listed()[phase]
    assert [name for name, f in found.items() if f is Finding.UNAVAILABLE] == []


def test_every_probe_is_tried(run: Run) -> None:
    tried = {name for found in run.found.values() for name in found}
    judged = {p.id for p in probes.SHARED if p.judge} | {p.id for p in SUBMITTING}
    print(f"{len(probes.PROBES)} rows, {len(judged)} judged by the host's own answer")
    assert tried | judged == {p.id for p in probes.PROBES}


def test_what_lies_in_out_is_judged_without_being_followed_opened_or_run(run: Run) -> None:
    assert last(run.replay, "validated")["accepted"][0]["name"] == "checkpoint-10"
    assert len(last(run.replay, "collected")["checkpoints"]) == 1
    assert [path.name for path in (run.replay / "checkpoints").iterdir()] == ["checkpoint-10"]
    forged = [e["data"]["name"] for e in events(run.replay) if e["data"].get("audit")]
    assert {"summary.json", ".complete"} <= set(forged)
    assert (run.replay / "score-001/.complete").exists()
    assert not [path for path in HOST_FILES if Path(path).exists()]


def test_a_hostile_repository_is_captured_without_being_run(run: Run) -> None:
    assert not [path for path in HOST_FILES if Path(path).exists()]
    assert b"payload" in (run.attempt / "candidate/candidate.patch").read_bytes()


def test_text_of_a_candidate_reaches_no_terminal_and_no_page_as_it_is(run: Run) -> None:
    assert b"\x1b" in (run.replay / "logs/stdout.log").read_bytes()
    assert run.rig.orch("report", run.attempt).code == 0
    page = (run.attempt / "analysis/report.html").read_text()
    assert "<script>alert" not in page
    assert "\x1b" not in page
    for words in (("show", run.replay), ("lifecycle", run.replay)):
        assert "\x1b" not in run.rig.orch(*words).out


def test_a_replay_starts_clean_and_cannot_reach_its_patch(run: Run) -> None:
    """sub-replay-reads-explore and sub-replay-writes-patch."""
    submission = json.loads((run.attempt / "candidate/submission.json").read_text())
    plan = json.loads((run.replay / "plan.json").read_text())
    assert plan["patch_sha256"] == submission["patch_sha256"]


SUBMITTING = tuple(p for p in probes.PROBES if p.mode == "host")
AGENT = "agent_explicit_submit"
CHANGE = "echo '# changed' >> /workspace/run.sh; "


@pytest.mark.parametrize(
    ("name", "wall", "reasons"),
    [
        ("sub-double", 60, {AGENT}),
        ("sub-parallel", 60, {AGENT}),
        ("sub-late", 10, {"phase_deadline"}),
        ("sub-race-deadline", 10, {AGENT, "phase_deadline"}),
        ("sub-fake-socket", 60, {AGENT}),
        ("sub-forge-record", 60, {"agent_early_exit"}),
    ],
)
def test_a_submission_is_what_the_host_takes(
    tmp_path: Path, name: str, wall: int, reasons: set[str]
) -> None:
    """A socket of the agent's own is nobody's; a forged record is only a file."""
    rig = Rig(tmp_path)
    command = f"ORCH_DEADLINE_S={wall}; {BY_ID[name].command}"
    steps = ({"run": CHANGE + command},)
    attempt = rig.explore(rig.pack(THREE, steps=steps, explore={"wall": f"{wall}s"}))
    taken = [e for e in events(attempt) if e["event"] == "captured"]
    assert len(taken) == 1
    data = taken[0]["data"]
    assert data["reason"] in reasons
    started = next(e for e in events(attempt) if e["event"] == "explore_started")
    left = int(started["data"]["deadline_boottime_ns"]) - int(started["mono_ns"])
    waited = datetime.fromisoformat(data["accepted_at"]) - datetime.fromisoformat(started["ts"])
    assert waited.total_seconds() <= left / 1e9 + 5 or data["reason"] == "phase_deadline"


def test_a_replay_that_writes_its_patch_writes_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    look = BY_ID["sub-replay-reads-explore"].command
    command = BY_ID["sub-replay-writes-patch"].command
    steps = (
        {"run": "touch /out/left /tmp/left; mkdir -p ~/.cache; touch ~/.cache/left"},
        {"run": CHANGE + "/opt/harness/submit.sh"},
    )
    attempt = rig.explore(rig.pack(f"{look}\n{command}\n{THREE}", steps=steps))
    before = snapshot(attempt / "candidate")
    replay = rig.replay(attempt)
    assert snapshot(attempt / "candidate") == before
    assert (replay / "logs/stdout.log").read_text() == "/out:\n\n/tmp:\nDONE\nDONE\n"


@contextmanager
def ready() -> Iterator[Any]:
    """A weak container with its network open."""
    with weak() as container:
        open_network(container)
        until(lambda: container.exec_run(["test", "-e", "/weak/ready"]).exit_code == 0)
        yield container


def test_every_probe_can_fail() -> None:
    commands = [p for p in probes.SHARED if not p.judge]
    inotify = [p for p in commands if p.id == "res-inotify"]
    env = {
        "CANARY_HOST": "127.0.0.1",
        "CANARY_PORT": str(CANARY_PORT),
        "PATH": "/weak:/usr/sbin:/usr/bin:/sbin:/bin",
    }
    with ready() as container:
        rest = [p for p in commands if p not in inotify]
        said = dict(
            probes.parts(container.exec_run(list(probes.batch(rest)), environment=env).output)
        )
        # Counted per user of the whole host: not as root, whose own services need some.
        alone = container.exec_run(list(probes.batch(inotify)), user="54321")
        said |= probes.parts(alone.output)
    found = {p.id: probes.read(said[p.id]) for p in commands}
    print(f"weak container: {len(found)} probes: {probes.tally(found)}")
    assert {name for name, f in found.items() if f is not Finding.OPEN} <= NO_SUCH_THING


@pytest.mark.parametrize("name", ["prc-term-pid1", "prc-killall-timer"])
def test_a_keep_alive_of_the_same_user_is_ended(name: str) -> None:
    with weak(argv=("sleep", "600"), init=True) as container:
        container.exec_run(["bash", "-c", BY_ID[name].command])
        assert container.wait(timeout=30)["StatusCode"] != 0


def test_without_limits_memory_and_log_are_open() -> None:
    with weak(argv=("bash", "-c", BY_ID["res-logflood"].command)) as container:
        container.wait(timeout=60)
        assert log_size(container.id) > 40_000_000
    with weak(argv=("sleep", "600"), init=True) as container:
        said = container.exec_run(["bash", "-c", BY_ID["res-membomb"].command]).output
        assert b"OPEN" in said
