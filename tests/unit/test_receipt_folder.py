import json
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.errors import TaskPackError
from orchestrator.storage.receipt_folder import last_receipt, mint, write_complete
from receipts.canonical import sha256_hex
from receipts.complete import Completeness, check
from receipts.envelope import open_envelope
from receipts.keys import SigningKey, load_or_create, publish
from receipts.statement import PhaseName
from tests.unit.receipts_help import finished_runs, statement


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
    runs: Path, damage: Callable[[Path], None], where: str
) -> None:
    summary = runs / SCORING / where
    marker = (summary.parent.parent if "out" in where else summary.parent) / ".complete"
    assert check(marker).completeness is Completeness.COMPLETE
    damage(summary)
    found = check(marker)
    assert found.completeness is Completeness.CORRUPT
    assert str(summary) in found.reason


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


def test_nothing_is_absent(tmp_path: Path) -> None:
    assert check(tmp_path / ".complete").completeness is Completeness.ABSENT


def test_SC_03_a_forged_summary_in_a_candidates_out_is_not_seen(runs: Path) -> None:
    out = runs / SCORING.parent / "out"
    forged = out / "attempt-001"
    (forged / "receipts").mkdir(parents=True)
    for name in ("summary.json", ".complete", "reward.json", "attempt-001/.complete"):
        (out / name).write_text('{"score": 1}')
    (forged / "receipts" / "001-explore.json").write_text("{}")
    assert check(out.parent / ".complete").completeness is Completeness.COMPLETE
    (out.parent / ".complete").unlink()
    assert check(out.parent / ".complete").completeness is Completeness.ABSENT


def test_SC_04_a_marker_with_another_size_is_corrupt(runs: Path) -> None:
    marker = runs / SCORING / ".complete"
    fields = json.loads(marker.read_bytes())
    fields["summary"]["size"] += 1
    marker.write_text(json.dumps(fields))
    assert "13 bytes where 14" in check(marker).reason
