"""Two commands at once, a copied runs folder, a changed pack, a death: no run is harmed."""

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import StorageFullError
from orchestrator.lifecycle.machine import Event
from orchestrator.pipeline import plans, register
from orchestrator.pipeline.reconcile import reconcile
from orchestrator.storage.journal import Journal
from receipts.verify import verify
from tests.e2e.rig import Rig, final, has, last, until

UNTIL_TOLD = "echo more >> run.sh; touch begun; until [ -e /out/go ]; do sleep 0.1; done"
SLOW = ({"run": UNTIL_TOLD}, {"run": "/opt/harness/submit.sh"})
NEVER_READ = (
    {"run": "mkdir empty; echo more >> run.sh"},
    {
        "run": """\
cd /run/orch
echo '{"id": "aa", "action": "submit"}' > .t && mv .t request-aa.json
sleep 60
"""
    },
)
"""Something stays behind, so that the host waits for the answer to be read; nobody reads it."""


def test_a_command_in_a_copy_of_the_runs_folder_leaves_the_run_alone(rig: Rig) -> None:
    running = rig.start("explore", rig.pack(steps=SLOW))
    (attempt,) = until(lambda: list(rig.runs.glob("*/attempt-001")))
    until((attempt / "workspace" / "begun").exists)
    copied = rig.root / "copied"
    subprocess.run(["cp", "-a", rig.runs, copied], check=True)
    with Rig(rig.root, {**rig.variables, "ORCH_RUNS": str(copied)}).context() as ctx:
        reconcile(ctx)
    assert final(copied / attempt.relative_to(rig.runs)) == "explore_started"
    (attempt / "out" / "go").touch()
    running.communicate(timeout=60)
    assert running.returncode == 0
    assert final(attempt) == "submitted"


def test_a_run_that_is_just_registered_is_not_ended_by_another_command(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = rig.enter(rig.pack())
    original = register.register_replay

    def beside_another_command(*words: Any) -> Any:
        folder = original(*words)
        assert rig.orch("score", "nothing").code == 64
        return folder

    monkeypatch.setattr(register, "register_replay", beside_another_command)
    with rig.context() as ctx:
        assert final(rig.replay_in(ctx, attempt)) == "validated"


def test_two_commands_may_begin_the_same_config(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    save = register.save

    def after_another_command(path: Path, record: Any) -> None:
        if path.name == "config.json":
            save(path, record)
        save(path, record)

    monkeypatch.setattr(register, "save", after_another_command)
    assert final(rig.enter(rig.pack())) == "submitted"


def _is_submitted(rig: Rig, attempt: Path) -> None:
    with rig.context() as ctx:
        reconcile(ctx)
    rig.settled(attempt)
    assert final(attempt) == "submitted"
    assert last(attempt, "captured")["contested"] == ["observation_gap"]
    rig.nothing_left()


def test_a_submission_that_was_accepted_outlives_its_supervisor(rig: Rig) -> None:
    running = rig.start("explore", rig.pack(steps=NEVER_READ))
    submission = "*/attempt-001/candidate/submission.json"
    (found,) = until(lambda: list(rig.runs.glob(submission)))
    attempt = found.parent.parent
    rig.kill_for_good(running, attempt)
    assert not has(attempt, "captured")
    _is_submitted(rig, attempt)


def test_a_submission_that_was_accepted_outlives_a_full_disk(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Journal.append

    def full(journal: Journal, event: Event, /, **data: Any) -> Any:
        if event is Event.CAPTURED:
            raise StorageFullError("no space")
        return original(journal, event, **data)

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "append", full)
        done = rig.call("explore", rig.pack())
    assert done.code == 75
    assert "it is completed in the background" in done.err
    (attempt,) = rig.runs.glob("*/attempt-001")
    _is_submitted(rig, attempt)


def test_a_plan_that_cannot_be_read_stops_no_other_run_and_loses_no_container(rig: Rig) -> None:
    attempt = rig.enter(rig.pack("touch /out/begun; sleep 2\n"))
    running = rig.start("replay", attempt)
    replay = attempt / "replay-001"
    until((replay / "out" / "begun").exists)
    rig.kill_for_good(running, replay)
    until(lambda: all(c.state().ended for c in rig.containers()))
    plan = (replay / "plan.json").read_bytes()
    (replay / "plan.json").write_bytes(plan[:100])
    rig.enter(rig.root / "pack")
    said = rig.call("submit-patch", rig.root / "pack", rig.root / "note.patch")
    assert said.code == 0
    assert "replay-001/plan.json" in said.err
    assert len(rig.containers()) == 1
    (replay / "plan.json").write_bytes(plan)
    with rig.context() as ctx:
        reconcile(ctx)
    rig.settled(replay)
    assert final(replay) == "no_checkpoint"
    rig.nothing_left()


def test_a_patch_that_is_gone_is_the_machines_doing_and_said(rig: Rig) -> None:
    attempt = rig.enter(rig.pack())
    (attempt / "candidate" / "candidate.patch").unlink()
    done = rig.call("replay", attempt)
    assert done.code == 75
    assert "the patch is not there" in done.err
    assert last(attempt / "replay-001", "infrastructure")["fact"] == "infrastructure"


def test_a_replay_is_not_gone_on_with_under_another_pack(rig: Rig) -> None:
    pack = rig.pack("touch /out/begun; sleep 2\n")
    attempt = rig.enter(pack)
    running = rig.start("replay", attempt)
    replay = attempt / "replay-001"
    until((replay / "out" / "begun").exists)
    rig.kill_for_good(running, replay)
    validator = pack / "validator" / "validate.sh"
    kept = validator.read_text()
    validator.write_text(kept + "# easier\n")
    with rig.context() as ctx:
        until(lambda: all(c.state().ended for c in rig.containers()))
        reconcile(ctx)
        until(lambda: final(replay) == "collected" and not rig.keepers())
        validator.write_text(kept)
        reconcile(ctx)
    rig.settled(replay)
    assert final(replay) == "no_checkpoint"
    rig.nothing_left()


def test_a_finished_replay_that_was_removed_is_not_drawn_again(rig: Rig) -> None:
    attempt = rig.enter(rig.pack())
    replay = rig.replay(attempt)
    replay.rename(rig.root / "put-away")
    done = rig.call("replay", attempt)
    assert done.code == 64
    assert "its folder is gone" in done.err
    assert not replay.exists()
    (rig.root / "put-away").rename(replay)
    assert "is finished" in rig.call("replay", attempt).err


def test_two_finished_replays_of_a_member_and_two_scorings_are_found(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = rig.enter(rig.pack())
    rig.replay(attempt)
    for where in (plans, register):
        monkeypatch.setattr(where, "require_free_member", lambda *_: None)
        monkeypatch.setattr(where, "superseded", lambda *_: None)
    replay = rig.replay(attempt)
    assert rig.call("score", replay).code == 0
    found = [fault.what for fault in verify(rig.runs).faults]
    assert len(found) == 2
    assert all(what.startswith("2 finished runs of") for what in found)


def test_a_terminal_that_hangs_up_ends_no_exploration(rig: Rig) -> None:
    pack = rig.pack(steps=({"run": "touch begun; sleep 3; echo more >> run.sh"}, *SLOW[1:]))
    child, terminal = pty.fork()
    if child == 0:
        words = (sys.executable, "-m", "orchestrator", "explore", str(pack))
        os.execve(sys.executable, words, {**os.environ, **rig.variables})  # noqa: S606
    (attempt,) = until(lambda: list(rig.runs.glob("*/attempt-001")))
    until((attempt / "workspace" / "begun").exists)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert last(attempt, "captured")["reason"] == "agent_explicit_submit"
