"""What somebody may do to a finished run: each by name, with the step of ``verify`` that finds it.

A tampering gets a ``Scene``, a copy of one real campaign: ``attempt-001`` with an official replay
that was scored over three checkpoints and a seeded one that came to nothing, and ``attempt-002``.
The strongest of them hold the operator's own key and mint with the code of orch itself.
"""

import base64
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.storage.receipt_folder import write_complete
from receipts.envelope import parse_envelope, sign
from receipts.verify_model import Step
from tests.integration.tampered_scene import (
    Line,
    Scene,
    Tampering,
    chain,
    event,
    head_of,
    published,
    replace_text,
    tell_otherwise,
    whole,
)

# Files


def patch_swapped(scene: Scene) -> None:
    shutil.copy(scene.attempt / "plan.json", scene.attempt / "candidate" / "candidate.patch")


def manifest_edited(scene: Scene) -> None:
    replace_text(scene.attempt / "candidate" / "manifest.json", "run.sh", "ran.sh")


def manifest_and_its_digest_edited(scene: Scene) -> None:
    path = scene.attempt / "candidate" / "manifest.json"
    fields = json.loads(path.read_text())
    fields["digest"] = "tree:v1:sha256:" + "4" * 64
    path.write_text(json.dumps(fields))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for name in ("001-explore", "002-submit"):
        scene.edit(name, lambda s: s["subject"][1]["digest"].update(sha256=digest))


def gate_evidence_edited(scene: Scene) -> None:
    replace_text(scene.replay / "gate.json", '"passed": true', '"passed": false')


def telemetry_edited(scene: Scene) -> None:
    replace_text(scene.replay / "telemetry.jsonl", '"kind":"end"', '"kind":"gap"')


def telemetry_removed(scene: Scene) -> None:
    (scene.scoring / "telemetry.jsonl").unlink()


def candidate_removed(scene: Scene) -> None:
    (scene.attempt / "candidate" / "candidate.patch").unlink()


def checkpoint_swapped(scene: Scene) -> None:
    (scene.replay / "checkpoints" / "checkpoint-20" / "weights.txt").write_text("0.9\n")


def checkpoint_given_a_file(scene: Scene) -> None:
    (scene.replay / "checkpoints" / "checkpoint-20" / "tokenizer.json").write_text("{}")


def checkpoint_made_a_link(scene: Scene) -> None:
    folder = scene.replay / "checkpoints" / "checkpoint-20"
    folder.rename(folder.with_name("kept"))
    folder.symlink_to("kept")


def checkpoint_swapped_and_hashes_recomputed_by_a_stranger(scene: Scene) -> None:
    scene.swap_checkpoint()
    scene.mint_again(scene.stranger)


def checkpoint_swapped_and_receipts_made_anew(scene: Scene) -> None:
    scene.swap_checkpoint()
    scene.mint_again()


def checkpoint_swapped_and_journal_made_anew(scene: Scene) -> None:
    tell_otherwise(scene, scene.swap_checkpoint())


def everything_made_anew(scene: Scene) -> None:
    before = {path: head_of(path / "lifecycle.jsonl") for path in (scene.replay, scene.scoring)}
    checkpoint_swapped_and_journal_made_anew(scene)

    def change(lines: list[Line]) -> None:
        text = json.dumps([line for line in lines if line["event"] != "head"])
        for path, old in before.items():
            text = text.replace(old, head_of(path / "lifecycle.jsonl"))
        lines[:] = json.loads(text)

    chain(scene.campaign, change)


# Scores


def score_edited(scene: Scene) -> None:
    replace_text(scene.scoring / "summary.json", "0.3", "0.9")


def score_of_a_checkpoint_edited(scene: Scene) -> None:
    replace_text(scene.scoring / "checkpoint-20" / "out" / "summary.json", "0.3", "0.9")


def another_best_named(scene: Scene) -> None:
    path = scene.scoring / "summary.json"
    fields = json.loads(path.read_text())
    fields["best"] = next(c for c in fields["checkpoints"] if c["checkpoint"] == "checkpoint-30")
    path.write_text(json.dumps(fields))
    scene.mint_again()


def score_edited_throughout(scene: Scene) -> None:
    replace_text(scene.scoring / "checkpoint-20" / "out" / "summary.json", "0.3", "0.9")
    scene.follow_summary("checkpoint-20")
    replace_text(scene.scoring / "summary.json", "0.3", "0.9")
    scene.mint_again()


def direction_turned(scene: Scene) -> None:
    for path in (scene.scoring / "plan.json", scene.scoring / "summary.json"):
        replace_text(path, '"direction": "max"', '"direction": "min"')
    scene.mint_again()


def official_receipts_swapped(scene: Scene) -> None:
    a, b = (
        scene.scoring / f"checkpoint-{n}" / "out" / "official-eval-receipt.json" for n in (10, 20)
    )
    kept = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(kept)


# Receipts


def receipt_deleted(scene: Scene) -> None:
    scene.receipt("004-replay").unlink()


def receipts_reordered(scene: Scene) -> None:
    a, b = scene.receipt("004-replay"), scene.receipt("003-gate")
    kept = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(kept)


def receipts_renumbered(scene: Scene) -> None:
    scene.receipt("004-replay").rename(scene.replay / "receipts" / "006-replay.json")


def receipts_rechained(scene: Scene) -> None:
    gate = json.loads(parse_envelope(scene.receipt("004-replay").read_bytes()).payload)
    scene.receipt("004-replay").unlink()
    scene.predicate("005-validate", prev=gate["predicate"]["prev"])
    scene.receipt("005-validate").rename(scene.replay / "receipts" / "004-validate.json")


def tail_dropped(scene: Scene) -> None:
    shutil.rmtree(scene.scoring)
    scene.receipt("005-validate").unlink()
    (scene.replay / ".complete").unlink()
    write_complete(scene.replay / ".complete", scene.receipt("004-replay"), None)


def scoring_dropped(scene: Scene) -> None:
    shutil.rmtree(scene.scoring)


def receipt_added(scene: Scene) -> None:
    shutil.copy(scene.receipt("003-gate"), scene.scoring / "receipts" / "007-gate.json")


def receipt_of_another_attempt(scene: Scene) -> None:
    shutil.copy(scene.other / "receipts" / "001-explore.json", scene.attempt / "receipts")


def another_attempt_presented_whole(scene: Scene) -> None:
    shutil.rmtree(scene.attempt)
    scene.other.rename(scene.attempt)


def another_config_presented(scene: Scene) -> None:
    (scene.runs / scene.config).rename(scene.runs / "shell__tiny__none__none__000000")


def receipt_made_a_link(scene: Scene) -> None:
    path = scene.receipt("003-gate")
    path.rename(scene.replay / "elsewhere.json")
    path.symlink_to("../elsewhere.json")


# Edges


def roles_swapped(scene: Scene) -> None:
    def change(statement: dict[str, Any]) -> None:
        materials = statement["predicate"]["materials"]
        materials["final:data/train"] = materials.pop("train:data/train")

    scene.edit("004-replay", change)


def roles_of_two_assets_swapped(scene: Scene) -> None:
    def change(statement: dict[str, Any]) -> None:
        materials = statement["predicate"]["materials"]
        materials["anchor:data/train"] = materials.pop("train:data/train")
        materials["train:models/start"] = materials.pop("anchor:models/start")

    scene.edit("004-replay", change)


def final_data_shown_to_replay(scene: Scene) -> None:
    scene.materials("004-replay", **{"final:data/final": "tree:v1:sha256:" + "1" * 64})


def anchor_exchanged(scene: Scene) -> None:
    scene.materials("004-replay", **{"anchor:models/start": "tree:v1:sha256:" + "1" * 64})


def asset_left_out(scene: Scene) -> None:
    scene.edit("001-explore", lambda s: s["predicate"]["materials"].pop("train:data/train"))


def evaluator_exchanged(scene: Scene) -> None:
    scene.materials("006-score", evaluator="tree:v1:sha256:" + "1" * 64)


def image_exchanged(scene: Scene) -> None:
    def change(statement: dict[str, Any]) -> None:
        statement["predicate"]["image"]["digest"] = "image:v1:sha256:" + "1" * 64

    scene.edit("004-replay", change)


def image_exchanged_in_the_plan_too(scene: Scene) -> None:
    digest = json.loads((scene.replay / "plan.json").read_text())["image"]["digest"]
    replace_text(scene.replay / "plan.json", digest, "image:v1:sha256:" + "1" * 64)
    scene.mint_again()


def task_exchanged(scene: Scene) -> None:
    scene.materials("006-score", task="pack:v1:sha256:" + "1" * 64)


def task_exchanged_everywhere(scene: Scene) -> None:
    for path in (scene.attempt / "plan.json", scene.scoring / "plan.json"):
        replace_text(path, scene.task, "pack:v1:sha256:" + "1" * 64)
    for name in ("001-explore", "002-submit"):
        scene.materials(name, task="pack:v1:sha256:" + "1" * 64)
    scene.mint_again()


def harness_exchanged(scene: Scene) -> None:
    scene.materials("004-replay", harness="tree:v1:sha256:" + "1" * 64)


def patch_exchanged(scene: Scene) -> None:
    scene.materials("004-replay", patch="sha256:" + "1" * 64)


def submission_of_something_else(scene: Scene) -> None:
    scene.materials("002-submit", **{"candidate/candidate.patch": "sha256:" + "1" * 64})


def limits_raised(scene: Scene) -> None:
    def change(statement: dict[str, Any]) -> None:
        statement["predicate"]["limits"]["memory"] *= 2

    scene.edit("004-replay", change)


def limits_raised_in_the_plan_too(scene: Scene) -> None:
    replace_text(scene.replay / "plan.json", '"memory": 268435456', '"memory": 536870912')
    scene.mint_again()


def command_exchanged(scene: Scene) -> None:
    replace_text(scene.replay / "plan.json", '"/workspace/run.sh"', '"/workspace/ran.sh"')
    scene.mint_again()


def made_official(scene: Scene) -> None:
    scene.predicate("006-score", official=True, relaxations=[])


def checkpoint_scored_that_was_not_accepted(scene: Scene) -> None:
    scene.materials("006-score", **{"checkpoint-40": "tree:v1:sha256:" + "1" * 64})


# Journals and the campaign log


def journal_line_edited(scene: Scene) -> None:
    replace_text(scene.replay / "lifecycle.jsonl", '"exit_code":0', '"exit_code":1')


def journal_line_edited_and_rechained(scene: Scene) -> None:
    chain(
        scene.replay / "lifecycle.jsonl",
        lambda lines: event(lines, "exited")["data"]["exit"].update(exit_code=1),
    )


def journal_removed(scene: Scene) -> None:
    (scene.scoring / "lifecycle.jsonl").unlink()


def outcome_told_otherwise(scene: Scene) -> None:
    def change(statement: dict[str, Any]) -> None:
        statement["predicate"]["outcome"]["contested"] = ["clock_step"]

    scene.edit("004-replay", change)


def _cut_back(folder: Path, to: str) -> None:
    """Cut a run back to the moment of an event, with everything that came later."""
    lines = (folder / "lifecycle.jsonl").read_text().splitlines(keepends=True)
    kept = next(n for n, line in enumerate(lines, start=1) if f'"event":"{to}"' in line)
    (folder / "lifecycle.jsonl").write_text("".join(lines[:kept]))
    shutil.rmtree(folder / "receipts")
    for path in (*folder.glob("checkpoint-*"), folder / ".complete", folder / "summary.json"):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def scoring_cut_back(scene: Scene) -> None:
    _cut_back(scene.scoring, "score_started")


def failed_replay_cut_back(scene: Scene) -> None:
    _cut_back(scene.failed, "run_started")


def failed_replay_removed(scene: Scene) -> None:
    shutil.rmtree(scene.failed)


def attempt_dropped(scene: Scene) -> None:
    shutil.rmtree(scene.other)


def failed_replay_removed_from_the_log_too(scene: Scene) -> None:
    run_id = json.loads((scene.failed / "plan.json").read_text())["run_id"]
    shutil.rmtree(scene.failed)
    chain(
        scene.campaign,
        lambda lines: lines.__setitem__(
            slice(None), [line for line in lines if line["data"].get("run_id") != run_id]
        ),
    )


def campaign_line_edited(scene: Scene) -> None:
    replace_text(scene.campaign, '"series":"seed-1"', '"series":"seed-2"')


def campaign_cut_back(scene: Scene) -> None:
    lines = scene.campaign.read_text().splitlines(keepends=True)
    scene.campaign.write_text("".join(lines[:-2]))


def campaign_removed(scene: Scene) -> None:
    scene.campaign.unlink()


def final_mount_uncounted(scene: Scene) -> None:
    def change(lines: list[Line]) -> None:
        lines.remove(event(lines, "final_mounted"))

    chain(scene.campaign, change)


# Commit records


def bare_marker(scene: Scene) -> None:
    (scene.scoring / ".complete").write_bytes(b"")


def marker_removed(scene: Scene) -> None:
    (scene.attempt / ".complete").unlink()


def marker_of_another_run(scene: Scene) -> None:
    shutil.copy(scene.other / ".complete", scene.attempt / ".complete")


def marker_of_another_checkpoint(scene: Scene) -> None:
    shutil.copy(
        scene.scoring / "checkpoint-10/.complete", scene.scoring / "checkpoint-20/.complete"
    )


def marker_of_a_checkpoint_removed(scene: Scene) -> None:
    (scene.scoring / "checkpoint-20" / ".complete").unlink()


# Envelopes and their form


def _envelope(scene: Scene, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    path = scene.receipt(name)
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))


def signed_by_an_unknown_key(scene: Scene) -> None:
    path = scene.receipt("005-validate")
    path.write_bytes(sign(parse_envelope(path.read_bytes()).payload, scene.stranger))


def signature_stripped(scene: Scene) -> None:
    _envelope(scene, "005-validate", lambda e: e.update(signatures=[]))


def signature_false(scene: Scene) -> None:
    false = base64.b64encode(b"\0" * 64).decode()
    _envelope(scene, "005-validate", lambda e: e["signatures"][0].update(sig=false))


def extra_field_beside_the_payload(scene: Scene) -> None:
    _envelope(scene, "005-validate", lambda e: e.update(note="trust me"))


def extra_field_in_the_statement(scene: Scene) -> None:
    scene.predicate("005-validate", note="trust me")


def key_twice(scene: Scene) -> None:
    path = scene.receipt("005-validate")
    payload = parse_envelope(path.read_bytes()).payload
    twice = payload.replace(b'"phase":"validate"', b'"phase":"validate","phase":"validate"')
    path.write_bytes(sign(twice, scene.key))


def newer_version(scene: Scene) -> None:
    scene.edit("005-validate", lambda s: s.update(predicateType="tag:orch-replay,2026:phase/v2"))


def plan_of_a_newer_version(scene: Scene) -> None:
    replace_text(scene.scoring / "plan.json", '"format": 1', '"format": 2')


def payload_of_another_type(scene: Scene) -> None:
    _envelope(scene, "005-validate", lambda e: e.update(payloadType="text/plain"))


TAMPERINGS = (
    *(
        Tampering(do, Step.FILES)
        for do in (
            patch_swapped,
            manifest_edited,
            manifest_and_its_digest_edited,
            gate_evidence_edited,
            telemetry_edited,
            telemetry_removed,
            candidate_removed,
            checkpoint_swapped,
            checkpoint_given_a_file,
            checkpoint_made_a_link,
            score_edited,
            score_of_a_checkpoint_edited,
            official_receipts_swapped,
        )
    ),
    *(
        Tampering(do, Step.SCORE)
        for do in (another_best_named, score_edited_throughout, direction_turned)
    ),
    *(
        Tampering(do, Step.SIGNATURES)
        for do in (
            checkpoint_swapped_and_hashes_recomputed_by_a_stranger,
            signed_by_an_unknown_key,
            signature_false,
        )
    ),
    *(
        Tampering(do, Step.PHASES)
        for do in (receipt_deleted, receipts_rechained, tail_dropped, receipt_added)
    ),
    *(
        Tampering(do, Step.CHAIN)
        for do in (
            receipts_renumbered,
            receipt_of_another_attempt,
            another_attempt_presented_whole,
            another_config_presented,
        )
    ),
    *(
        Tampering(do, Step.EDGES)
        for do in (
            checkpoint_swapped_and_receipts_made_anew,
            roles_swapped,
            roles_of_two_assets_swapped,
            final_data_shown_to_replay,
            anchor_exchanged,
            asset_left_out,
            evaluator_exchanged,
            image_exchanged,
            image_exchanged_in_the_plan_too,
            task_exchanged,
            task_exchanged_everywhere,
            harness_exchanged,
            patch_exchanged,
            submission_of_something_else,
            limits_raised,
            limits_raised_in_the_plan_too,
            command_exchanged,
            made_official,
            checkpoint_scored_that_was_not_accepted,
        )
    ),
    *(
        Tampering(do, Step.JOURNAL)
        for do in (
            journal_line_edited,
            journal_line_edited_and_rechained,
            journal_removed,
            outcome_told_otherwise,
        )
    ),
    *(
        Tampering(do, Step.CAMPAIGN)
        for do in (
            checkpoint_swapped_and_journal_made_anew,
            scoring_cut_back,
            failed_replay_cut_back,
            campaign_line_edited,
            final_mount_uncounted,
        )
    ),
    *(
        Tampering(do, Step.CAMPAIGN, whole)
        for do in (scoring_dropped, failed_replay_removed, attempt_dropped, campaign_removed)
    ),
    *(
        Tampering(do, Step.CAMPAIGN, published)
        for do in (
            everything_made_anew,
            failed_replay_removed_from_the_log_too,
            campaign_cut_back,
        )
    ),
    *(
        Tampering(do, Step.COMMIT)
        for do in (
            bare_marker,
            marker_removed,
            marker_of_another_run,
            marker_of_another_checkpoint,
            marker_of_a_checkpoint_removed,
        )
    ),
    *(
        Tampering(do, Step.PARSE)
        for do in (
            receipts_reordered,
            receipt_made_a_link,
            signature_stripped,
            extra_field_beside_the_payload,
            extra_field_in_the_statement,
            key_twice,
            newer_version,
            plan_of_a_newer_version,
            payload_of_another_type,
        )
    ),
)
