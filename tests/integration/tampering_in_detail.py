"""Tamperings that hold to a step's single checks: each with words of the finding it must lead to.

Whoever makes them holds the operator's key, and lets all else follow.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from receipts.verify_model import Step
from tests.integration.tampered_scene import (
    Line,
    Scene,
    Tampering,
    chain,
    event,
    replace_text,
    whole,
)
from tests.integration.tampering import (
    another_attempt_presented_whole,
    campaign_line_edited,
    journal_line_edited,
    journal_line_edited_and_rechained,
    journal_removed,
    manifest_and_its_digest_edited,
    receipt_deleted,
    receipt_of_another_attempt,
)

ONES = "1" * 64
TREE = "tree:v1:sha256:" + ONES


def _lines(scene: Scene, change: Callable[[list[Line]], object]) -> None:
    chain(scene.replay / "lifecycle.jsonl", change)


def _log(scene: Scene, change: Callable[[list[Line]], object]) -> None:
    chain(scene.campaign, change)


def _record(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))


def other_checkpoints_given_out(scene: Scene) -> None:
    scene.edit("004-replay", lambda s: s["subject"][0]["digest"].update(sha256=ONES))


def a_line_of_another_run(scene: Scene) -> None:
    _lines(scene, lambda lines: lines[2].update(id="0" * 32))


def a_journal_of_another_run(scene: Scene) -> None:
    _lines(scene, lambda lines: [line.update(id="0" * 32) for line in lines])


def begun_twice(scene: Scene) -> None:
    _lines(scene, lambda lines: lines.insert(1, dict(lines[0])))


def gone_on_after_the_end(scene: Scene) -> None:
    _lines(scene, lambda lines: lines.append(lines[-1] | {"event": "noted", "data": {}}))


def told_otherwise(scene: Scene) -> None:
    def change(statement: dict[str, Any]) -> None:
        statement["predicate"]["outcome"]["details"]["rejected"] = 1

    scene.edit("005-validate", change)


def told_of_what_never_happened(scene: Scene) -> None:
    def change(statement: dict[str, Any]) -> None:
        statement["predicate"]["outcome"]["event"] = "none_valid"

    scene.edit("005-validate", change)


def logged_for_another_campaign(scene: Scene) -> None:
    _log(scene, lambda lines: lines[3].update(id="elsewhere"))


def begun_after_the_close(scene: Scene) -> None:
    _log(scene, lambda lines: lines.insert(0, lines[0] | {"event": "closed", "data": {}}))


def registered_twice(scene: Scene) -> None:
    _log(scene, lambda lines: lines.insert(1, json.loads(json.dumps(lines[0]))))


def registered_as_another(scene: Scene) -> None:
    _log(scene, lambda lines: event(lines, "replay_registered")["data"].update(series="seed-2"))


def never_registered(scene: Scene) -> None:
    _log(scene, lambda lines: event(lines, "replay_registered")["data"].update(run_id="0" * 32))


def end_never_logged(scene: Scene) -> None:
    _log(scene, lambda lines: lines.remove(event(lines, "ended")))


def final_mount_miscounted(scene: Scene) -> None:
    _log(scene, lambda lines: event(lines, "final_mounted")["data"].update(count=2))


def journal_alone_cut_back(scene: Scene) -> None:
    _lines(scene, lambda lines: lines.pop())


def the_first_replay_erased(scene: Scene) -> None:
    ids = {
        json.loads((p / "plan.json").read_text())["run_id"] for p in (scene.replay, scene.scoring)
    }
    shutil.rmtree(scene.replay)

    def change(lines: list[Line]) -> None:
        lines[:] = [line for line in lines if line["data"].get("run_id") not in ids]

    _log(scene, change)


def entered_otherwise(scene: Scene) -> None:
    replace_text(scene.attempt / "plan.json", '"entry": "explore"', '"entry": "checkpoint"')


def tail_cut_off(scene: Scene) -> None:
    scene.receipt("005-validate").unlink()


def first_that_follows_one(scene: Scene) -> None:
    scene.predicate("001-explore", prev="sha256:" + ONES)


def first_that_is_not_number_one(scene: Scene) -> None:
    folder = scene.other / "receipts"
    for number, name in ((3, "002-submit"), (2, "001-explore")):
        (folder / f"{name}.json").rename(folder / f"{number:03d}-{name[4:]}.json")


def a_number_skipped(scene: Scene) -> None:
    folder = scene.replay / "receipts"
    (folder / "005-validate.json").rename(folder / "006-validate.json")


def a_replay_of_another_attempt(scene: Scene) -> None:
    plan = scene.replay / "plan.json"
    replace_text(plan, json.loads(plan.read_text())["attempt_id"], "0" * 32)


def a_scoring_of_another_replay(scene: Scene) -> None:
    plan = scene.scoring / "plan.json"
    replace_text(plan, json.loads(plan.read_text())["replay_id"], "0" * 32)


def marker_over_other_files(scene: Scene) -> None:
    def change(marker: dict[str, Any]) -> None:
        summary = marker["summary"]
        marker["receipt"] = {"name": summary["name"], "sha256": summary["sha256"]}

    _record(scene.scoring / "checkpoint-20" / ".complete", change)


def a_checkpoints_score_erased(scene: Scene) -> None:
    shutil.rmtree(scene.scoring / "checkpoint-20")


def marker_over_an_earlier_receipt(scene: Scene) -> None:
    path = scene.receipt("004-replay")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    reference = {"name": f"receipts/{path.name}", "sha256": digest}
    _record(scene.replay / ".complete", lambda marker: marker.update(receipt=reference))


def taken_for_another_candidate(scene: Scene) -> None:
    _record(scene.replay / "plan.json", lambda plan: plan.update(candidate="candidate:v1:x"))


def another_system_call_filter(scene: Scene) -> None:
    scene.materials("004-replay", seccomp="sha256:" + ONES)


def explored_from_another_solution(scene: Scene) -> None:
    scene.materials("001-explore", workspace=TREE)


def submitted_on_another_solution(scene: Scene) -> None:
    scene.materials("002-submit", base=TREE)


def another_manifest_submitted(scene: Scene) -> None:
    scene.materials("002-submit", manifest=TREE)


def a_file_given_out_from_elsewhere(scene: Scene) -> None:
    scene.edit("003-gate", lambda s: s["subject"][0].update(name="../../../campaign.jsonl"))


def a_receipted_file_of_a_newer_version(scene: Scene) -> None:
    replace_text(scene.replay / "artifacts.json", '"format": 1', '"format": 1.5')
    digest = hashlib.sha256((scene.replay / "artifacts.json").read_bytes()).hexdigest()
    scene.edit("005-validate", lambda s: s["subject"][0]["digest"].update(sha256=digest))


def a_folder_in_place_of_a_file(scene: Scene) -> None:
    (scene.replay / "gate.json").unlink()
    (scene.replay / "gate.json").mkdir()


def _submission(scene: Scene, **changes: Any) -> None:
    path = scene.attempt / "candidate" / "submission.json"
    _record(path, lambda fields: fields.update(changes))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for name in ("001-explore", "002-submit"):
        scene.edit(name, lambda s: s["subject"][2]["digest"].update(sha256=digest))
    scene.materials("002-submit", **{"candidate/submission.json": f"sha256:{digest}"})


def a_patch_of_another_size(scene: Scene) -> None:
    _submission(scene, patch_size=1)


def a_submission_of_another_base(scene: Scene) -> None:
    _submission(scene, base_digest=TREE)


def a_check_that_failed(scene: Scene) -> None:
    _record(scene.replay / "gate.json", lambda gate: gate["checks"][0].update(passed=False))
    scene.mint_again()


def an_acceptance_hidden(scene: Scene) -> None:
    scene.edit("005-validate", lambda s: s["subject"].pop(-2))


def more_accepted_than_are_kept(scene: Scene) -> None:
    replace_text(scene.attempt / "plan.json", '"keep": 3', '"keep": 2')


def another_progress(scene: Scene) -> None:
    replace_text(scene.replay / "artifacts.json", '"progress": 20', '"progress": 40')
    scene.mint_again()


def another_metric(scene: Scene) -> None:
    replace_text(scene.scoring / "summary.json", '"metric": "score"', '"metric": "loss"')
    scene.mint_again()


def another_status(scene: Scene) -> None:
    _record(scene.scoring / "summary.json", lambda found: found.update(status="invalid"))
    scene.mint_again()


def a_score_without_a_value(scene: Scene) -> None:
    def change(summary: dict[str, Any]) -> None:
        summary["value"] = summary["metrics"]["score"]["value"] = None

    _record(scene.scoring / "checkpoint-20" / "out" / "summary.json", change)
    scene.follow_summary("checkpoint-20")
    scene.mint_again()


def an_official_receipt_that_did_not_pass(scene: Scene) -> None:
    official = scene.scoring / "checkpoint-20" / "out" / "official-eval-receipt.json"
    _record(official, lambda found: found.update(passed=False))
    scene.follow_summary("checkpoint-20")
    scene.mint_again()


def a_row_that_is_not_its_summarys(scene: Scene) -> None:
    def change(found: dict[str, Any]) -> None:
        found["checkpoints"][1]["progress"] = found["best"]["progress"] = 50

    _record(scene.scoring / "summary.json", change)
    scene.mint_again()


def a_gate_that_did_not_pass(scene: Scene) -> None:
    _record(scene.replay / "gate.json", lambda gate: gate.update(passed=False))
    scene.mint_again()


def no_score_at_all(scene: Scene) -> None:
    (scene.scoring / "summary.json").unlink()
    scene.mint_again()


def no_official_receipt(scene: Scene) -> None:
    (scene.scoring / "checkpoint-20" / "out" / "official-eval-receipt.json").unlink()
    scene.mint_again()


def no_summary(scene: Scene) -> None:
    (scene.scoring / "checkpoint-20" / "out" / "summary.json").unlink()
    scene.mint_again()


def a_summary_of_another_progress(scene: Scene) -> None:
    summary = scene.scoring / "checkpoint-20" / "out" / "summary.json"
    _record(summary, lambda found: found.update(progress=50))
    scene.follow_summary("checkpoint-20")
    scene.mint_again()


DETAILS: tuple[tuple[Callable[[Scene], None], Step, str], ...] = (
    (other_checkpoints_given_out, Step.JOURNAL, "gave out other checkpoints than the journal"),
    (other_checkpoints_given_out, Step.EDGES, "judged other checkpoints than replay gave out"),
    (a_line_of_another_run, Step.JOURNAL, "line 3: it belongs to run 000"),
    (a_journal_of_another_run, Step.CHAIN, "its journal is of run 000"),
    (journal_line_edited, Step.JOURNAL, "line 6: its prev is not the hash of the line before"),
    (campaign_line_edited, Step.CAMPAIGN, "its prev is not the hash of the line before"),
    (journal_line_edited_and_rechained, Step.JOURNAL, "made over a journal line that is not here"),
    (journal_line_edited_and_rechained, Step.CAMPAIGN, "that the log pins at exited is not here"),
    (journal_removed, Step.PHASES, "no journal, so nobody can say"),
    (journal_alone_cut_back, Step.COMMIT, "committed, but its journal has no ending"),
    (journal_alone_cut_back, Step.CAMPAIGN, "the log names another end of it"),
    (begun_twice, Step.JOURNAL, "line 2: registered out of place"),
    (gone_on_after_the_end, Step.JOURNAL, "something follows its ending"),
    (gone_on_after_the_end, Step.JOURNAL, "made over line 7 of the journal, whose end is 8"),
    (told_otherwise, Step.JOURNAL, "tells validated otherwise than the journal"),
    (told_of_what_never_happened, Step.JOURNAL, "tells of none_valid, which did not happen"),
    (logged_for_another_campaign, Step.CAMPAIGN, "line 4: it belongs to elsewhere"),
    (begun_after_the_close, Step.CAMPAIGN, "begun after the campaign's end"),
    (registered_twice, Step.CAMPAIGN, "registers"),
    (registered_as_another, Step.CAMPAIGN, "registered with another series"),
    (never_registered, Step.CAMPAIGN, "never registered"),
    (final_mount_miscounted, Step.CAMPAIGN, "mount of final data counted 2"),
    (end_never_logged, Step.CAMPAIGN, "its end was never logged"),
    (the_first_replay_erased, Step.CAMPAIGN, "the numbers of replay of"),
    (entered_otherwise, Step.PHASES, "entry checkpoint has no phase gate"),
    (receipt_deleted, Step.CHAIN, "prev is not 003-gate.json"),
    (tail_cut_off, Step.CHAIN, "its replay has no validate receipt at its end"),
    (receipt_of_another_attempt, Step.CHAIN, "it is about attempt 2, not 1"),
    (another_attempt_presented_whole, Step.CHAIN, "it is of number 2"),
    (first_that_follows_one, Step.CHAIN, "it follows one, but is the first"),
    (first_that_is_not_number_one, Step.CHAIN, "the first receipt is not number 1"),
    (a_number_skipped, Step.CHAIN, "its number does not follow 004-replay.json"),
    (a_replay_of_another_attempt, Step.CHAIN, "it is of attempt 000"),
    (a_scoring_of_another_replay, Step.CHAIN, "it is of replay 000"),
    (marker_over_other_files, Step.COMMIT, "commits to other files than a score's"),
    (a_checkpoints_score_erased, Step.COMMIT, "missing, and the journal says it was scored"),
    (marker_over_an_earlier_receipt, Step.COMMIT, "004-replay.json, not the last receipt"),
    (taken_for_another_candidate, Step.EDGES, "not named by this task, tree and image"),
    (taken_for_another_candidate, Step.CAMPAIGN, "registered with another candidate"),
    (another_system_call_filter, Step.EDGES, "its seccomp is not the plan's"),
    (explored_from_another_solution, Step.EDGES, "its workspace is not the plan's"),
    (submitted_on_another_solution, Step.EDGES, "its base is not the plan's"),
    (another_manifest_submitted, Step.EDGES, "its manifest is not that of the submission"),
    (another_manifest_submitted, Step.FILES, "its manifest is not that of submission.json"),
    (a_file_given_out_from_elsewhere, Step.FILES, "gate gives out no ../../../campaign.jsonl"),
    (a_receipted_file_of_a_newer_version, Step.FILES, "has format 1.5"),
    (a_folder_in_place_of_a_file, Step.FILES, "not a regular file"),
    (a_patch_of_another_size, Step.FILES, "its patch size is another"),
    (a_submission_of_another_base, Step.FILES, "its base is not that of submission.json"),
    (a_check_that_failed, Step.FILES, "passed, with a check that was not"),
    (an_acceptance_hidden, Step.FILES, "accepts other checkpoints than the receipt"),
    (an_acceptance_hidden, Step.EDGES, "checkpoint-30 is not scored as it was accepted"),
    (more_accepted_than_are_kept, Step.FILES, "more checkpoints than the task keeps"),
    (another_progress, Step.FILES, "checkpoint-20 has progress 40"),
    (manifest_and_its_digest_edited, Step.FILES, "its entries are not those of its digest"),
    (a_gate_that_did_not_pass, Step.FILES, "the journal says it was passed"),
    (no_score_at_all, Step.SCORE, "there is no receipted score"),
    (no_official_receipt, Step.SCORE, "there is no receipted official receipt"),
    (no_summary, Step.SCORE, "checkpoint-20 has no summary"),
    (a_summary_of_another_progress, Step.SCORE, "its progress is not what it should be"),
    (another_metric, Step.SCORE, "its metric is not the plan's"),
    (another_status, Step.SCORE, "its status is invalid"),
    (a_score_without_a_value, Step.SCORE, "scored, without a finite value"),
    (an_official_receipt_that_did_not_pass, Step.SCORE, "its passed is not what it should be"),
    (a_row_that_is_not_its_summarys, Step.SCORE, "the progress of checkpoint-20 is not its"),
)

DETAILED = tuple(
    Tampering(do, step, whole if do is the_first_replay_erased else Tampering.wanted, says)
    for do, step, says in DETAILS
)
