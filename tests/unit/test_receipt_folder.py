import json
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.errors import TaskPackError
from orchestrator.storage.receipt_folder import last_receipt, mint, write_complete
from receipts.__main__ import main
from receipts.canonical import sha256_hex
from receipts.complete import Completeness, check
from receipts.envelope import open_envelope, sign
from receipts.keys import SigningKey, load_or_create, publish
from receipts.statement import PhaseName
from receipts.verify import Verdict, verify
from tests.unit.receipts_help import TASK, finished_runs, statement


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return load_or_create(tmp_path / "home")


@pytest.fixture
def runs(tmp_path: Path, key: SigningKey) -> Path:
    runs = tmp_path / "runs"
    finished_runs(runs, key)
    publish(key, runs / "keys")
    return runs


SCORING = Path("config/attempt-001/replay-001/score-001")


def test_minting_is_done_once(tmp_path: Path, key: SigningKey) -> None:
    folder = tmp_path / "receipts"
    assert last_receipt(folder) is None
    first = mint(folder, 1, statement(PhaseName.EXPLORE, None), key)
    before = first.path.stat()
    assert first.path.name == "001-explore.json"
    assert first.envelope_sha256 == sha256_hex(first.path.read_bytes())
    payload = open_envelope(first.path.read_bytes(), [key.verifying])
    assert first.payload_sha256 == sha256_hex(payload)
    assert mint(folder, 1, statement(PhaseName.EXPLORE, None), key) == first
    assert first.path.stat() == before
    second = mint(folder, 2, statement(PhaseName.SUBMIT, first.digest), key)
    assert last_receipt(folder) == second
    assert (first.number, second.number) == (1, 2)


@pytest.mark.parametrize("phase", [PhaseName.EXPLORE, PhaseName.SUBMIT])
def test_a_number_says_one_thing_only(tmp_path: Path, key: SigningKey, phase: PhaseName) -> None:
    first = mint(tmp_path, 1, statement(PhaseName.EXPLORE, None), key)
    before = first.path.read_bytes()
    with pytest.raises(TaskPackError, match="already says something else"):
        mint(tmp_path, 1, statement(phase, None, reason="x"), key)
    assert [p.name for p in tmp_path.glob("0*")] == ["001-explore.json"]
    assert first.path.read_bytes() == before


def test_a_broken_receipt_is_not_built_on(tmp_path: Path, key: SigningKey) -> None:
    (tmp_path / "001-explore.json").write_bytes(b"{}")
    with pytest.raises(TaskPackError, match="001-explore"):
        last_receipt(tmp_path)
    with pytest.raises(TaskPackError, match="001-explore"):
        mint(tmp_path, 1, statement(PhaseName.EXPLORE, None), key)


def test_the_marker_is_linked_once_and_never_changed(tmp_path: Path) -> None:
    marker, receipt, summary = (tmp_path / n for n in (".complete", "r.json", "summary.json"))
    receipt.write_bytes(b"{}")
    with pytest.raises(TaskPackError, match=r"summary\.json"):
        write_complete(marker, receipt, summary)
    summary.write_bytes(b"")
    with pytest.raises(TaskPackError, match="cannot commit"):
        write_complete(marker, receipt, summary)
    summary.write_bytes(b'{"score": 1}')
    write_complete(marker, receipt, summary)
    assert json.loads(marker.read_bytes()) == {
        "version": 1,
        "receipt": {"name": "r.json", "sha256": sha256_hex(b"{}")},
        "summary": {"name": "summary.json", "sha256": sha256_hex(b'{"score": 1}'), "size": 12},
    }
    before = marker.stat()
    write_complete(marker, receipt, summary)
    assert marker.stat() == before
    summary.write_bytes(b'{"score": 2}')
    with pytest.raises(TaskPackError, match="already commits"):
        write_complete(marker, receipt, summary)
    assert marker.stat() == before
    with pytest.raises(TaskPackError, match="cannot commit"):
        write_complete(tmp_path / "elsewhere" / ".complete", receipt, None)


def _gone(path: Path) -> None:
    path.unlink()


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _edited(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.9"))


def _linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize("damage", [_gone, _empty, _edited, _linked])
@pytest.mark.parametrize("where", ["summary.json", "checkpoint-10/out/summary.json"])
def test_SC_04_a_marker_without_its_summary_is_corrupt(
    runs: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None], where: str
) -> None:
    summary = runs / SCORING / where
    marker = (summary.parent.parent if "out" in where else summary.parent) / ".complete"
    assert check(marker).completeness is Completeness.COMPLETE
    damage(summary)
    found = check(marker)
    assert found.completeness is Completeness.CORRUPT
    assert str(summary) in found.reason
    assert main(["verify", str(runs)]) == 1
    assert str(summary) in capsys.readouterr().out


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"done",
        b"{}",
        b'{"version": 2}',
        b'{"version": 1, "receipt": {"name": "../x", "sha256": "%s"}, "summary": null}'
        % (b"0" * 64),
    ],
    ids=["empty", "newline", "text", "object", "version", "outside"],
)
def test_SC_04_a_bare_or_broken_marker_is_corrupt(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".complete").write_bytes(content)
    found = check(tmp_path / ".complete")
    assert found.completeness is Completeness.CORRUPT
    assert ".complete" in found.reason


def test_SC_04_a_marker_that_leaves_the_summary_out_is_corrupt(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(b"{}")
    write_complete(tmp_path / ".complete", tmp_path / "r.json", None)
    assert check(tmp_path / ".complete").completeness is Completeness.COMPLETE
    (tmp_path / "summary.json").write_bytes(b"{}")
    assert check(tmp_path / ".complete").completeness is Completeness.CORRUPT


def test_a_summary_without_a_marker_is_incomplete(runs: Path) -> None:
    for folder in (runs / SCORING, runs / SCORING / "checkpoint-10"):
        (folder / ".complete").unlink()
        assert check(folder / ".complete").completeness is Completeness.INCOMPLETE
    assert verify(runs).verdict is Verdict.FINDING


def test_nothing_is_absent(tmp_path: Path) -> None:
    assert check(tmp_path / ".complete").completeness is Completeness.ABSENT
    assert verify(tmp_path).verdict is Verdict.FINDING


def test_SC_03_a_forged_summary_in_a_candidates_out_is_not_seen(runs: Path) -> None:
    out = runs / SCORING.parent / "out"
    forged = out / "attempt-001"
    (forged / "receipts").mkdir(parents=True)
    for name in ("summary.json", ".complete", "reward.json", "attempt-001/.complete"):
        (out / name).write_text('{"score": 1}')
    (forged / "receipts" / "001-explore.json").write_text("{}")
    assert check(out.parent / ".complete").completeness is Completeness.COMPLETE
    assert verify(runs).faults == []
    (out.parent / ".complete").unlink()
    assert check(out.parent / ".complete").completeness is Completeness.ABSENT


def test_a_true_chain_verifies(
    runs: Path, tmp_path: Path, key: SigningKey, capsys: pytest.CaptureFixture[str]
) -> None:
    report = verify(runs)
    assert (report.faults, report.notes) == ([], [])
    assert (report.receipts, report.runs) == (6, 3)
    assert report.verdict is Verdict.UNAUTHENTICATED
    pem = tmp_path / "trusted.pem"
    pem.write_bytes(key.verifying.pem)
    assert main(["verify", str(runs)]) == 3
    assert main(["verify", str(runs), "--key", str(pem)]) == 3
    assert main(["verify", str(runs), "--key", str(pem), "--task", TASK]) == 0
    assert "consistent and signed by the given keys" in capsys.readouterr().out
    assert main(["verify", str(runs), "--task", "sha256:" + "0" * 64]) == 1
    assert main(["verify", str(runs / "missing")]) == 64
    assert main(["verify", str(runs), "--key", str(runs)]) == 64


@pytest.mark.parametrize("part", [SCORING, SCORING.parent, SCORING / "receipts"])
def test_a_part_of_a_chain_verifies_where_it_lies_and_away(
    runs: Path, tmp_path: Path, part: Path, key: SigningKey
) -> None:
    assert verify(runs / part).verdict is Verdict.UNAUTHENTICATED
    assert verify(runs / part).notes == []
    run = runs / (SCORING if part.name == "receipts" else part)
    away = tmp_path / "away" / run.name
    away.parent.mkdir()
    run.rename(away)
    report = verify(away, [key.verifying])
    assert report.verdict is Verdict.UNAUTHENTICATED
    assert len(report.notes) == 1


def test_a_strangers_key_is_a_finding(runs: Path, tmp_path: Path) -> None:
    stranger = load_or_create(tmp_path / "stranger")
    report = verify(runs, [stranger.verifying])
    assert {fault.step for fault in report.faults} == {"signatures"}
    assert len(report.faults) == 6


def test_a_published_key_under_a_false_name_is_a_finding(runs: Path, tmp_path: Path) -> None:
    stranger = load_or_create(tmp_path / "stranger")
    (runs / "keys" / ("0" * 64 + ".pem")).write_bytes(stranger.verifying.pem)
    assert [fault.step for fault in verify(runs).faults] == ["signatures"]


def _resign(path: Path, key: SigningKey, old: str, new: str) -> None:
    payload = open_envelope(path.read_bytes(), [key.verifying])
    assert old.encode() in payload
    path.unlink()
    text = payload.decode().replace(old, new)
    path.write_bytes(sign(text.encode(), key))


@pytest.mark.parametrize(
    ("receipt", "step"),
    [
        ("config/attempt-001/receipts/001-explore.json", "chain"),
        ("config/attempt-001/receipts/002-submit.json", "chain"),
        ("config/attempt-001/replay-001/receipts/004-replay.json", "chain"),
        ("config/attempt-001/replay-001/receipts/005-validate.json", "chain"),
        ("config/attempt-001/replay-001/score-001/receipts/006-score.json", "commit"),
    ],
)
def test_a_receipt_signed_anew_breaks_what_follows_it(
    runs: Path, key: SigningKey, receipt: str, step: str
) -> None:
    _resign(runs / receipt, key, '"reason":""', '"reason":"better"')
    assert step in {fault.step for fault in verify(runs).faults}


@pytest.mark.parametrize("name", ["003-gate.json", "004-replay.json", "005-validate.json"])
def test_a_receipt_that_is_gone_or_renamed_is_missed(runs: Path, name: str) -> None:
    path = runs / SCORING.parent / "receipts" / name
    kept = path.read_bytes()
    path.unlink()
    assert {fault.step for fault in verify(runs).faults} >= {"chain"}
    path.with_name(name[:4] + "explore.json").write_bytes(kept)
    assert "parse" in {fault.step for fault in verify(runs).faults}


def test_an_unfinished_run_is_a_finding(runs: Path) -> None:
    (runs / "config" / "attempt-001" / ".complete").unlink()
    (fault,) = verify(runs).faults
    assert (fault.step, fault.what) == ("commit", "missing: not finished")


def test_a_marker_over_an_earlier_receipt_is_a_finding(runs: Path) -> None:
    replay = runs / SCORING.parent
    (replay / ".complete").unlink()
    write_complete(replay / ".complete", replay / "receipts" / "004-replay.json", None)
    (fault,) = verify(runs).faults
    assert fault.step == "commit"
    assert "004-replay.json, not the last" in fault.what


def test_a_gap_in_the_numbers_is_a_finding(runs: Path) -> None:
    receipts = runs / SCORING / "receipts"
    (receipts / "006-score.json").rename(receipts / "007-score.json")
    assert "chain" in {fault.step for fault in verify(runs).faults}


def test_SC_04_a_marker_with_another_size_is_corrupt(runs: Path) -> None:
    marker = runs / SCORING / ".complete"
    fields = json.loads(marker.read_bytes())
    fields["summary"]["size"] += 1
    marker.write_text(json.dumps(fields))
    assert "13 bytes where 14" in check(marker).reason


def test_hostile_names_do_not_steer_the_terminal(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "config" / "attempt-001" / "receipts" / "\x1b[2J\u202e").write_text("")
    assert main(["verify", str(runs)]) == 1
    text = capsys.readouterr().out
    assert text.isascii()
    assert "\x1b" not in text
