"""An exploration's exchanges, recorded and served again without any provider."""

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.adapters.model_gateway.gateway import HostModelGateway
from orchestrator.adapters.model_gateway.record import MAX_BODY
from orchestrator.adapters.system_clock import SystemClock
from orchestrator.domain.model import Dialect, Ended, Refusal
from orchestrator.domain.task import Budget
from orchestrator.errors import UsageError
from tests.mock_models.server import MockModels
from tests.mock_models.turns import Cut, Status, Turn
from tests.unit.gateway_cases import CASES, CHAT_CASE, GEMINI_CASE, RESPONSES_CASE, TURN, Case
from tests.unit.gateway_help import KEY, MODEL, line

TURNS = [TURN, Turn(text="Now I know."), Turn(text="Done.")]


def conversation(case: Case, seen: str = "total 4") -> list[dict[str, Any]]:
    """Make three requests, each with one more turn than the last."""
    bodies = []
    turns: list[Any] = list(case.body.get("messages") or case.body.get("input") or [])
    name = "input" if case is RESPONSES_CASE else "messages"
    for number in range(3):
        more = f"{seen}, look {number}"
        if case is GEMINI_CASE:
            said = {"role": "user", "parts": [{"text": more}]}
            contents = [*case.body["contents"], *[said] * number]
            bodies.append(case.streamed(contents=contents))
        else:
            said = {"role": "user", "content": [{"type": "text", "text": more}]}
            bodies.append(case.streamed(**{name: [*turns, *[said] * number]}))
    return bodies


def recorded(file: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in file.read_text(encoding="ascii").splitlines()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.dialect)
def test_a_recording_answers_byte_for_byte_as_the_provider_did(case: Case, tmp_path: Path) -> None:
    prices = {MODEL: {"input": 2.0, "output": 10.0}}
    with MockModels(TURNS) as models, line(models, tmp_path, effort="high", prices=prices) as agent:
        live = [agent.post(case.path, body) for body in conversation(case)]
        spent = agent.gateway.usage()
        assert spent.cost > 0
    with line(None, tmp_path, model=f"recorded/{agent.record}", record="again.jsonl") as again:
        served = [again.post(case.path, body) for body in conversation(case)]
        assert again.gateway.usage() == spent
    assert [reply.content for reply in served] == [reply.content for reply in live]
    assert [exchange.note for exchange in again.exchanges] == [""] * 3
    first, second = recorded(agent.record), recorded(again.record)
    assert [x.get("body") for x in first] == [x.get("body") for x in second]


def test_a_clock_in_what_a_tool_printed_does_not_end_a_replay(tmp_path: Path) -> None:
    with MockModels(TURNS) as models, line(models, tmp_path) as agent:
        for body in conversation(CHAT_CASE, "at 12:30:01 it took 0.31 s"):
            agent.post(CHAT_CASE.path, body)
    with line(None, tmp_path, model=f"recorded/{agent.record}", record="again.jsonl") as again:
        for body in conversation(CHAT_CASE, "at 7:05:59 it took 12 s"):
            assert again.post(CHAT_CASE.path, body).status_code == 200
    assert [exchange.note for exchange in again.exchanges] == [""] * 3


def test_other_words_in_the_same_place_are_served_and_said(tmp_path: Path) -> None:
    with MockModels(TURNS) as models, line(models, tmp_path) as agent:
        for body in conversation(CHAT_CASE, "this"):
            agent.post(CHAT_CASE.path, body)
    with line(None, tmp_path, model=f"recorded/{agent.record}", record="again.jsonl") as again:
        for body in conversation(CHAT_CASE, "that"):
            assert again.post(CHAT_CASE.path, body).status_code == 200
    notes = [exchange.note for exchange in again.exchanges]
    assert notes[0] == ""
    assert "exchange 2 of the recording: messages[1].content[0].text" in notes[1]


def test_a_request_that_was_never_made_is_refused_in_words(tmp_path: Path) -> None:
    first, second, third = conversation(CHAT_CASE)
    with MockModels(TURNS) as models, line(models, tmp_path) as agent:
        agent.post(CHAT_CASE.path, first)
        agent.post(CHAT_CASE.path, second)
    with line(None, tmp_path, model=f"recorded/{agent.record}", record="again.jsonl") as again:
        unknown = again.post(CHAT_CASE.path, third)
        assert again.post(CHAT_CASE.path, second).status_code == 200
        assert again.post(CHAT_CASE.path, first).status_code == 200
        over = again.post(CHAT_CASE.path, first)
    assert unknown.status_code == 409
    assert "exchange 1 of the recording: messages[1]" in CHAT_CASE.message(unknown.json())
    assert "all 2 exchanges of the recording were served" in CHAT_CASE.message(over.json())
    assert again.exchanges[0].refusal is Refusal.NOT_RECORDED


def test_failures_that_reached_the_agent_are_recorded_like_replies(tmp_path: Path) -> None:
    acts = [Cut(TURN, 3), Status(400, b'{"error": {"message": "too long a prompt"}}')]
    first, second, _ = conversation(CHAT_CASE)
    with MockModels(acts) as models, line(models, tmp_path) as agent:
        with pytest.raises(httpx.RemoteProtocolError):
            agent.post(CHAT_CASE.path, first)
        agent.post(CHAT_CASE.path, {**first, "model": "other"})
        live = agent.post(CHAT_CASE.path, second)
    with line(None, tmp_path, model=f"recorded/{agent.record}", record="again.jsonl") as again:
        with pytest.raises(httpx.RemoteProtocolError):
            again.post(CHAT_CASE.path, first)
        assert again.post(CHAT_CASE.path, {**first, "model": "other"}).status_code == 404
        assert again.post(CHAT_CASE.path, second).content == live.content
    assert again.exchanges[0].ended is Ended.CUT


def test_what_repeats_from_request_to_request_is_stored_once(tmp_path: Path) -> None:
    instructions = "Be careful. " * 1000
    bodies = [
        {**body, "messages": [{"role": "system", "content": instructions}, *body["messages"]]}
        for body in conversation(CHAT_CASE)
    ]
    with MockModels(TURNS) as models, line(models, tmp_path) as agent:
        for body in bodies:
            agent.post(CHAT_CASE.path, body)
    text = agent.record.read_text(encoding="ascii")
    assert text.count(instructions) == 1
    lines = recorded(agent.record)
    assert lines[0]["schema"] == "orch.exchanges/1"
    assert lines[1]["parts"]
    assert not lines[2]["parts"]
    assert lines[2]["request"]["messages"][0] == lines[1]["request"]["messages"][0]
    assert lines[1]["reply"]["text"] == TURN.text
    assert lines[1]["usage"]["output"] == 20


def test_a_recording_is_bounded_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.adapters.model_gateway.record.MAX_RECORD", 20_000)
    long = Turn(text="word " * 2000)
    with MockModels([long] * 3) as models, line(models, tmp_path) as agent:
        for body in conversation(CHAT_CASE):
            assert agent.post(CHAT_CASE.path, body).status_code == 200
    assert agent.record.stat().st_size < 20_100
    assert recorded(agent.record)[-1] == {"full": 20_000}
    assert len(agent.exchanges) == 3


def test_a_reply_that_was_too_long_to_record_is_not_served_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_BODY == 16 * 1024**2
    monkeypatch.setattr("orchestrator.adapters.model_gateway.passing.MAX_BODY", 1000)
    with MockModels(TURNS) as models, line(models, tmp_path) as agent:
        agent.post(CHAT_CASE.path, CHAT_CASE.streamed())
    with line(None, tmp_path, model=f"recorded/{agent.record}", record="again.jsonl") as again:
        reply = again.post(CHAT_CASE.path, CHAT_CASE.streamed())
    assert reply.status_code == 409
    assert "only a part of this reply" in CHAT_CASE.message(reply.json())


def test_the_key_is_in_no_file(tmp_path: Path) -> None:
    curious = {**CHAT_CASE.body, "messages": [{"role": "user", "content": f"is it {KEY}?"}]}
    with MockModels(TURNS) as models, line(models, tmp_path) as agent:
        agent.post(CHAT_CASE.path, curious)
        agent.post(f"/v1/{KEY}", curious)
        agent.post(CHAT_CASE.path, {**curious, "model": KEY})
        agent.post(CHAT_CASE.path, {**curious, KEY: 1})
        heard = repr(agent.exchanges)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert agent.record in files
    for file in files:
        assert KEY not in str(file)
        assert KEY.encode() not in file.read_bytes()
    assert KEY not in heard


def test_what_is_no_recording_is_said_before_anything_starts(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "notes.txt").write_text("hello\n")
    (tmp_path / "bad.jsonl").write_text('{"schema": "orch.exchanges/1", "dialects": ["x"]}\n')
    odd = {"schema": "orch.exchanges/1", "model": "m", "dialects": ["chat"], "prices": {"m": 1}}
    (tmp_path / "priceless.jsonl").write_text(json.dumps(odd) + "\n")
    mute = {"schema": "orch.exchanges/1", "model": "m", "dialects": []}
    (tmp_path / "mute.jsonl").write_text(json.dumps(mute) + "\n")
    with MockModels(TURNS) as models, line(models, tmp_path, effort="high") as agent:
        agent.post(CHAT_CASE.path, CHAT_CASE.streamed())
    for name, effort, words in (
        ("missing.jsonl", "", "No such file"),
        ("pipe", "", "no plain file"),
        ("/dev/zero", "", "no plain file"),
        (".", "", "no plain file"),
        ("notes.txt", "", "no recording"),
        ("bad.jsonl", "", "no recording"),
        ("priceless.jsonl", "", "no recording"),
        ("mute.jsonl", "", "no recording"),
        ("exchanges.jsonl", "low", "recorded with effort high"),
    ):
        with (
            pytest.raises(UsageError, match=words),
            line(None, tmp_path, model=f"recorded/{tmp_path / name}", effort=effort),
        ):
            pass
    model = f"recorded/{agent.record}"
    choice = HostModelGateway({}, tmp_path, SystemClock(), {}.get).choose(model, "", Budget())
    assert choice.dialects == (Dialect.CHAT,)
    with line(None, tmp_path, model=model, effort="high", record="again.jsonl") as again:
        assert again.http.get("/v1/models").json()["data"][0]["id"] == MODEL


@pytest.mark.parametrize(
    "changed",
    [
        {"number": None},
        {"fingerprint": ["exact"]},
        {"fingerprint": {"x": 1}},
        {"status": "abc"},
        {"status": 999},
        {"content_type": 7},
    ],
    ids=str,
)
def test_a_recording_that_somebody_made_up_is_the_operators_error(
    changed: dict[str, Any], tmp_path: Path
) -> None:
    with MockModels(TURNS) as models, line(models, tmp_path) as agent:
        agent.post(CHAT_CASE.path, CHAT_CASE.streamed())
    header, exchange = recorded(agent.record)
    made_up = tmp_path / "made-up.jsonl"
    made_up.write_text(json.dumps(header) + "\n" + json.dumps(exchange | changed) + "\n")
    with (
        pytest.raises(UsageError, match="is no exchange"),
        line(None, tmp_path, model=f"recorded/{made_up}", record="again.jsonl"),
    ):
        pass


@pytest.mark.parametrize(
    "changed",
    [
        {"body_base64": "x"},
        {"request": {"a": [[]]}, "parts": [1], "fingerprint": {"exact": "", "shape": ""}},
    ],
    ids=["body", "parts"],
)
def test_a_line_that_somebody_made_up_is_refused_in_words(
    changed: dict[str, Any], tmp_path: Path
) -> None:
    with MockModels(TURNS) as models, line(models, tmp_path) as agent:
        agent.post(CHAT_CASE.path, CHAT_CASE.streamed())
    header, exchange = recorded(agent.record)
    made_up = tmp_path / "made-up.jsonl"
    made_up.write_text(json.dumps(header) + "\n" + json.dumps(exchange | changed) + "\n")
    model = f"recorded/{made_up}"
    with line(None, tmp_path, model=model, record="again.jsonl") as again:
        reply = again.post(CHAT_CASE.path, CHAT_CASE.streamed())
        assert again.gateway.failed() is None
    assert reply.status_code == 409


def test_a_record_whose_writer_was_killed_is_gone_on_with(tmp_path: Path) -> None:
    first, second, _ = conversation(CHAT_CASE)
    with MockModels(TURNS) as models:
        with line(models, tmp_path) as agent:
            agent.post(CHAT_CASE.path, first)
        with agent.record.open("ab") as file:
            file.write(b'{"at": "2026-01-01T00:00:00+00:00", "dial')
        with line(models, tmp_path) as agent:
            agent.post(CHAT_CASE.path, second)
    with line(None, tmp_path, model=f"recorded/{agent.record}", record="again.jsonl") as again:
        assert again.post(CHAT_CASE.path, first).status_code == 200
        assert again.post(CHAT_CASE.path, second).status_code == 200
    assert [exchange.note for exchange in again.exchanges] == ["", ""]
