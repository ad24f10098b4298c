"""``orch queue`` as it is typed, against the real engine: workers, their deaths, and wishes."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rig import PUBLISH, Rig, final, has, kill_group, until

SMALL = {"disk": "8m"}
SLOW = PUBLISH + "publish 10 0.1\nsleep 4\n"
EXPLORING = ({"run": "sleep 30"},)


def _jobs(rig: Rig) -> list[dict[str, Any]]:
    done = rig.call("queue", "list", "--json")
    assert done.code == 0, done.err
    return list(done.json())


def _told(rig: Rig, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(job[name] for name in names) for job in _jobs(rig)]


@pytest.mark.slow
def test_two_workers_share_four_jobs_and_what_follows(rig: Rig) -> None:
    pack = rig.pack(defaults=SMALL)
    added = rig.call("queue", "add", pack, "--repeats", "2", "--through", "replay")
    assert added.code == 0, added.err
    workers = [rig.start("queue", "run") for _ in range(2)]
    for worker in workers:
        _out, err = worker.communicate(timeout=180)
        assert worker.returncode == 0, err.decode()
    assert _told(rig, "kind", "status", "tries", "exit") == [
        ("explore", "terminal_behavior", 0, 0),
        ("explore", "terminal_behavior", 0, 0),
        ("replay", "terminal_behavior", 0, 0),
        ("replay", "terminal_behavior", 0, 0),
    ]
    attempts = sorted(rig.runs.glob("*/attempt-*"))
    assert [attempt.name for attempt in attempts] == ["attempt-001", "attempt-002"]
    assert all(len(list(attempt.glob("replay-*"))) == 1 for attempt in attempts)
    rig.nothing_left()


@pytest.mark.slow
def test_a_killed_worker_costs_its_replay_nothing(rig: Rig) -> None:
    attempt = rig.enter(rig.pack(SLOW, defaults=SMALL))
    assert rig.call("queue", "add", "--replay", attempt).code == 0
    worker = rig.start("queue", "run")
    until(rig.runs_now)
    worker.kill()
    worker.communicate()
    assert [job["worker_gone"] for job in _jobs(rig)] == [True]
    done = rig.orch("queue", "run", timeout=180)
    assert done.code == 0, done.err
    assert _told(rig, "kind", "status", "outcome", "tries") == [
        ("replay", "terminal_behavior", "validated", 0),
        ("score", "terminal_behavior", "scored", 0),
    ]
    assert [path.name for path in attempt.glob("replay-*")] == ["replay-001"]
    assert not any(job["worker_gone"] for job in _jobs(rig))
    rig.nothing_left()


@pytest.mark.slow
def test_QU_06_an_exploration_whose_worker_died_is_tried_again(rig: Rig) -> None:
    pack = rig.pack(steps=EXPLORING, defaults=SMALL)
    assert rig.call("queue", "add", pack, "--through", "explore").code == 0
    worker = rig.start("queue", "run")
    attempt = until(lambda: next(iter(rig.runs.glob("*/attempt-001")), None))
    until(lambda: has(attempt, "explore_started"))
    kill_group(worker)
    worker.communicate()
    # It cannot be adopted: the agent died with its worker. Its end is booked, whoever books it.
    other = rig.start("queue", "run")
    try:
        until(lambda: _told(rig, "status", "tries") == [("queued", 1)])
    finally:
        other.send_signal(signal.SIGTERM)
        other.communicate(timeout=60)
    assert other.returncode == 0
    assert final(attempt) == "infrastructure"
    assert rig.call("queue", "cancel", "j1").code == 0
    assert _told(rig, "status") == [("cancelled",)]
    until(lambda: rig.containers() == [])
    rig.nothing_left()


@pytest.mark.slow
def test_sigterm_ends_a_worker_after_the_job_under_way(rig: Rig) -> None:
    attempt = rig.enter(rig.pack(SLOW, defaults=SMALL))
    added = rig.call("queue", "add", "--replay", attempt, "--repeats", "2", "--through", "replay")
    assert added.code == 0, added.err
    worker = rig.start("queue", "run")
    until(lambda: has(attempt / "replay-001", "run_started"))
    worker.send_signal(signal.SIGTERM)
    _out, err = worker.communicate(timeout=120)
    assert worker.returncode == 0, err.decode()
    assert b"no further job is taken" in err
    assert _told(rig, "series", "status") == [
        ("seed-1", "terminal_behavior"),
        ("seed-2", "queued"),
    ]
    rig.nothing_left()


@pytest.mark.slow
def test_a_cancelled_job_and_an_interrupted_one_are_their_operators(rig: Rig) -> None:
    attempt = rig.enter(rig.pack(PUBLISH + "sleep 60\n", defaults=SMALL))
    assert rig.call("queue", "add", "--replay", attempt, "--repeats", "2").code == 0
    worker = rig.start("queue", "run")
    until(lambda: has(attempt / "replay-001", "run_started"))
    asked = rig.call("queue", "cancel", "j1")
    assert asked.code == 0
    assert "asked to stop" in asked.err
    until(lambda: has(attempt / "replay-002", "run_started"))
    worker.send_signal(signal.SIGINT)
    worker.communicate(timeout=60)
    assert worker.returncode == 130
    assert _told(rig, "status", "outcome", "exit") == [
        ("terminal_operator", "operator_interrupt", 130),
        ("terminal_operator", "operator_interrupt", 130),
    ]
    refused = rig.call("queue", "retry", "j1")
    assert refused.code == 64
    assert "--again" in refused.err
    assert rig.call("queue", "retry", "j1", "--again", "wrong button").code == 0
    assert _told(rig, "status")[0] == ("queued",)
    rig.nothing_left()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("retry", "j9"), 64, "no job 'j9'"),
        (("cancel", "j9"), 64, "no job 'j9'"),
        (("add",), 64, "name either tasks"),
        (("add", "digits_class0", "--replay", "x"), 64, "name either tasks"),
        (("add", "digits_class0", "nowhere"), 64, "nowhere"),
        (("add", "digits_class0", "--model", "gpt"), 64, "works without a model"),
        (("add", "digits_class0", "--agent", "nobody"), 64, "no agent"),
        (("add", "digits_class0", "--agent", "shell"), 64, "terminal"),
        (("add", "--replay", "0123"), 64, "0123"),
        (("run", "--jobs", "0"), 64, "--jobs"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_is_refused_and_adds_nothing(
    rig: Rig, words: tuple[str, ...], code: int, said: str
) -> None:
    done = rig.call("queue", *words)
    assert (done.code, said in done.err) == (code, True), done.err
    assert not (rig.runs / "queue.tsv").exists()


def test_a_faulty_pack_adds_nothing_of_the_others(rig: Rig) -> None:
    good, bad = rig.pack(), rig.pack(folder="bad")
    with (bad / "task.yaml").open("a") as file:
        file.write("surplus: key\n")
    done = rig.call("queue", "add", good, bad)
    assert done.code == 65
    assert "surplus" in done.err
    assert not (rig.runs / "queue.tsv").exists()


def test_a_list_says_what_cannot_be_read_and_changes_nothing(rig: Rig) -> None:
    pack = rig.pack()
    assert rig.call("queue", "add", pack, "--repeats", "2", "--priority", "3").code == 0
    table = rig.runs / "queue.tsv"
    spoilt = table.read_bytes() + b"id4\tpend"
    table.write_bytes(spoilt)
    done = rig.call("queue")
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines()] == ["job", "j1", "j2"]
    assert "queue.tsv:4: it has 2 columns, not 18" in done.err
    assert table.read_bytes() == spoilt
    assert rig.call("queue", "--status", "running").out.startswith("no such jobs")
    assert rig.call("queue", "cancel", "j1").code == 0
    assert len(rig.call("queue", "list", "--status", "queued", "--json").json()) == 1
    assert (rig.runs / "queue.quarantine.tsv").exists()


def test_an_empty_queue_says_what_to_do(rig: Rig, tmp_path: Path) -> None:
    done = rig.call("queue")
    assert (done.code, "orch queue add" in done.out) == (0, True)
    assert rig.call("queue", "--json").json() == []
    assert list(tmp_path.iterdir()) == []
