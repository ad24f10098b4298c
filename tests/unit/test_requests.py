"""What an agent asks for costs the host a bounded amount, however often and long it asks."""

import json
from pathlib import Path

from orchestrator.domain.records import LeftOutRecord
from orchestrator.evidence.requests import Answer, RequestBox


def _box(folder: Path) -> RequestBox:
    for name in ("run", "answers"):
        (folder / name).mkdir()
    return RequestBox(folder / "run", folder / "answers")


def _ask(box: RequestBox, name: str) -> None:
    request = {"id": name, "action": "submit"}
    (box.requests / f"request-{name}.json").write_text(json.dumps(request))


def test_a_request_is_handled_once_while_it_lies_there(tmp_path: Path) -> None:
    box = _box(tmp_path)
    _ask(box, "a")
    first = box.next()
    assert first is not None
    assert first.id == "a"
    assert box.next() is None


def test_a_name_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    box = _box(tmp_path)
    for number in range(3):
        _ask(box, f"n{number}")
        assert box.next() is not None
        (box.requests / f"request-n{number}.json").unlink()
    assert box.next() is None
    assert box._handled == set()
    _ask(box, "n0")
    assert box.next() is not None


def test_only_the_latest_answers_are_kept(tmp_path: Path) -> None:
    box = _box(tmp_path)
    for number in range(200):
        box.answer(Answer(id=f"n{number}", accepted=False, message="no"))
    kept = {path.name for path in box.answers.iterdir()}
    assert kept == {f"n{number}.json" for number in range(136, 200)}


def test_an_answer_lists_no_more_than_it_has_room_for(tmp_path: Path) -> None:
    box = _box(tmp_path)
    rows = tuple(
        LeftOutRecord(path=f"{number:04d}" + "%FF" * 1000, reason="empty_folder")
        for number in range(1000)
    )
    box.answer(Answer(id="a", accepted=False, message="no", left_out=rows))
    said = (box.answers / "a.json").read_bytes()
    assert 20 <= said.count(b"empty_folder") <= 21
    assert len(said) < 100_000
