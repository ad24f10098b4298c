"""The main job as a person types it."""

import json

from tests.e2e.rig import SCORER, Rig, events, final, last


def test_explore_then_replay_then_score(rig: Rig) -> None:
    attempt = rig.explore(rig.pack())
    assert final(attempt) == "submitted"
    captured = last(attempt, "captured")
    assert captured["reason"] == "agent_explicit_submit"
    assert captured["exit"]["exit_code"] == 137
    assert captured["exit"]["killed_by"] == "orchestrator"
    replay = rig.replay(attempt)
    assert final(replay) == "validated"
    scoring = replay / "score-001"
    assert [e["event"] for e in events(scoring)][-1] == "scored"
    aggregate = json.loads((scoring / "summary.json").read_text())
    assert aggregate["best"]["checkpoint"] == "checkpoint-20"
    assert aggregate["best"]["value"] == 0.3
    for folder in (attempt, replay, scoring, scoring / "checkpoint-20"):
        assert (folder / ".complete").is_file(), folder


def test_an_official_result_is_official_from_the_start(rig: Rig) -> None:
    pack = rig.pack()
    local = rig.explore(pack)
    refused = rig.call("replay", local, "--official")
    assert refused.code == 64
    assert "is local, so nothing official can follow from it" in refused.err
    official = rig.explore(pack, "--official")
    once = ("replay", official)
    for words in (
        once,
        (*once, "--repeats", "2"),
        (*once, "--dry-run"),
        ("queue", "add", "--replay", official),
    ):
        refused = rig.call(*words)
        assert (refused.code, "local for good" in refused.err) == (64, True)
    assert not (official / "replay-001").exists()
    assert "series_declared" not in (rig.runs / "campaign.jsonl").read_text()
    replay = rig.replay(official, "--official")
    aggregate = json.loads((replay / "score-001" / "summary.json").read_text())
    assert aggregate["official"] is True
    assert aggregate["relaxations"] == []
    assert "local for good" in rig.call("score", replay).err
    twice = rig.call("score", official)
    assert (twice.code, "not a replay" in twice.err) == (64, True)
    (pack / "evaluator/score.sh").write_text(SCORER.replace("value=$(cat", "value=0.9$(cut -c3-"))
    refused = rig.call("score", replay, "--official")
    assert refused.code == 64
    assert "no score with it is official" in refused.err
    assert not (replay / "score-002").exists()
