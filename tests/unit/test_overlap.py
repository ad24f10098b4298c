import gzip
import io
from pathlib import Path

import numpy as np
import pytest

from orchestrator.evidence.overlap import HiddenAsset, Overlap, RowIndex

RNG = np.random.default_rng(5)
ROWS = RNG.integers(0, 17, (6, 64)).astype(np.float64)


def _index(folder: Path, *, final: bool = True, allowed: frozenset[str] = frozenset()) -> RowIndex:
    index = RowIndex()
    index.add(HiddenAsset("data/final", folder, final=final, allowed=allowed))
    return index


def _hidden(tmp_path: Path, rows: np.ndarray = ROWS) -> Path:
    folder = tmp_path / "final"
    folder.mkdir()
    np.save(folder / "x.npy", rows)
    return folder


def _csv(rows: np.ndarray) -> bytes:
    return b"".join(b",".join(b"%g" % v for v in row) + b"\n" for row in rows)


def _npz(rows: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.savez_compressed(content, x=rows)
    return content.getvalue()


def _npy(rows: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, rows)
    return content.getvalue()


LABELLED = np.column_stack([ROWS, np.arange(6)])


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.npy", _npy(ROWS[:2]), 2),
        ("a.npy", _npy(ROWS / 16), 6),
        ("a.npy", _npy((ROWS / 16).astype(np.float32)), 6),
        ("a.npy", _npy(ROWS.astype(np.uint8)), 6),
        ("a.npy", _npy(ROWS.astype(">i4")), 6),
        ("a.npy", _npy(np.asfortranarray(ROWS)), 6),
        ("a.npy", _npy(ROWS.reshape(6, 8, 8)), 6),
        ("a.npz", _npz(ROWS), 6),
        ("digits.csv.gz", gzip.compress(_csv(LABELLED)), 6),
        ("first.CSV", _csv(np.column_stack([[7.0] * 6, ROWS])), 6),
        ("tabs.tsv", _csv(ROWS).replace(b",", b"\t"), 6),
        ("a.npy", _npy(ROWS + RNG.normal(size=ROWS.shape)), 0),
        ("a.npy", _npy(np.zeros((6, 64))), 0),
        ("a.npy", b"\x93NUMPY garbage", 0),
        ("a.npz", b"PK garbage", 0),
        ("a.bin", _npy(ROWS)[:-1], 0),
    ],
)
def test_rows_are_found_whatever_their_type_scale_or_container(
    tmp_path: Path, name: str, content: bytes, rows: int
) -> None:
    index = _index(_hidden(tmp_path))
    found = list(index.in_image("cpu", [(f"/usr/{name}", io.BytesIO(content))]))
    assert found == ([Overlap("data/final", "cpu", f"/usr/{name}", rows)] if rows else [])


def test_the_very_file_is_found_in_an_image_under_any_name(tmp_path: Path) -> None:
    folder = _hidden(tmp_path)
    (folder / "photo.png").write_bytes(b"not a table")
    found = _index(folder).in_image("cpu", [("/opt/blob", io.BytesIO(b"not a table"))])
    assert [hit.file for hit in found] == ["/opt/blob"]


def test_text_rows_match_whatever_their_spacing_and_order_of_keys(tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final/rows.jsonl").write_text('{"question": "Who wrote it?", "answer": "She"}\n')
    (tmp_path / "final/notes.txt").write_text("short\nA line of text to be hidden\n")
    train = tmp_path / "train"
    train.mkdir()
    (train / "a.jsonl").write_text('{"answer":"She",  "question":"Who wrote it?"}\nshort\n')
    (train / "b.txt").write_text("  A line of text   to be hidden\n")
    found = list(_index(tmp_path / "final").in_asset("data/train", train))
    assert [(hit.file, hit.rows) for hit in found] == [("a.jsonl", 1), ("b.txt", 1)]


def test_a_declared_overlap_is_allowed_with_that_asset_alone(tmp_path: Path) -> None:
    folder = _hidden(tmp_path)
    index = _index(folder, allowed=frozenset({"data/train"}))
    assert not list(index.in_asset("data/train", folder))
    assert [hit.rows for hit in index.in_asset("data/proxy", folder)] == [6]
    content = (folder / "x.npy").read_bytes()
    assert list(index.in_image("cpu", [("x.npy", io.BytesIO(content))]))


def test_labels_alone_and_shared_configurations_are_no_overlap(tmp_path: Path) -> None:
    reference, anchor = tmp_path / "reference", tmp_path / "anchor"
    for folder in (reference, anchor):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        np.save(folder / "labels.npy", np.zeros(40, dtype=np.int64))
    assert not list(_index(reference, final=False).in_asset("models/start", anchor))


def test_a_hidden_file_that_cannot_be_compared_is_named(tmp_path: Path) -> None:
    folder = _hidden(tmp_path)
    (folder / "x.npy").write_bytes((folder / "x.npy").read_bytes()[:-8])
    index = _index(folder)
    assert [(asset, text.split(":")[0]) for asset, text in index.unread] == [
        ("data/final", "x.npy")
    ]
