"""Attacks on a score that were tried by hand, each as a whole run."""

import json
import stat

from tests.e2e.rig import FINAL_TOKEN, PUBLISH, VALIDATOR, Rig, final, last

ONE = PUBLISH + "publish 10 0.5\n"


def test_nothing_published_after_the_deadline_counts(rig: Rig) -> None:
    late = "publish 10 0.1\n(setsid bash -c 'sleep 9'; publish 20 0.9) &\nsleep 600\n"
    replay = rig.run(PUBLISH + late, replay={"wall": "8s"})
    assert last(replay, "exited")["exit"]["stop_reason"] == "deadline"
    assert [row["name"] for row in last(replay, "validated")["accepted"]] == ["checkpoint-10"]
    rig.nothing_left()


def test_a_checkpoint_that_brings_its_own_settings_changes_no_score(rig: Rig) -> None:
    """The scorer takes its settings from the anchor: what lies beside the weights is not asked."""
    own = (
        PUBLISH
        + "publish 10 0.5\n"
        + "for f in config.json tokenizer.json generation_config.json; do\n"
        + '  echo \'{"score": 1.0, "auto_map": {"AutoModel": "evil.py"}}\' > "$OUTPUT_DIR/$f"\n'
        + '  cp "$OUTPUT_DIR/$f" "$OUTPUT_DIR/checkpoints/checkpoint-10/"\n'
        + "done\n"
    )
    attempt = rig.explore(rig.pack(own))
    scored = rig.replay(attempt) / "score-001"
    assert json.loads((scored / "summary.json").read_text())["best"]["value"] == 0.5


def test_a_checkpoint_that_exhausts_the_scorer_becomes_no_zero_and_no_free_draw(rig: Rig) -> None:
    greedy = (
        'if [ -z "$ORCH_REFERENCE_RUN" ]; then python3 -c "b = bytearray(1 << 30)"; fi\n'
        'echo \'{"status": "scored", "metrics": {"score": 0.1}}\' > /out/summary.json\n'
    ).replace('"b = bytearray(1 << 30)"; fi', '"b = bytearray(1 << 30)" || exit; fi')
    attempt = rig.explore(rig.pack(ONE, scorer=greedy, validator=VALIDATOR))
    assert rig.call("replay", attempt).code == 75
    replay = attempt / "replay-001"
    assert final(replay) == "validated"
    assert final(replay / "score-001") == "infrastructure"
    rig.call("score", replay)
    assert final(replay / "score-002") == "unscorable"
    assert rig.call("replay", attempt).code == 64


def test_final_rows_in_a_scorers_traceback_stay_sealed(rig: Rig) -> None:
    loud = "cat /assets/data/final/weights.txt >&2\ncat /assets/data/final/weights.txt\nexit 1\n"
    attempt = rig.explore(rig.pack(ONE, scorer=loud))
    said = rig.call("replay", attempt)
    assert said.code == 75
    replay = attempt / "replay-001"
    shown = [rig.call(word, replay) for word in ("show", "lifecycle", "logs", "report")]
    for done in (said, *shown, rig.call("logs", replay / "score-001")):
        assert FINAL_TOKEN not in done.out + done.err
    sealed = [path for path in (replay / "score-001/logs").rglob("*.log") if path.stat().st_size]
    assert sealed
    assert {stat.S_IMODE(path.stat().st_mode) for path in sealed} == {0o600}
    holders = {
        path
        for path in rig.runs.rglob("*")
        if path.is_file() and FINAL_TOKEN.encode() in path.read_bytes()
    }
    assert holders == set(sealed)
