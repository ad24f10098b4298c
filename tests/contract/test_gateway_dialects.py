"""One contract for every dialect, through a real socket, against a provider that speaks it."""

import json
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.domain.model import Ended, Refusal, ToolCall, Usage
from orchestrator.domain.task import Budget
from tests.mock_models.server import MockModels
from tests.mock_models.turns import Cut, Ending, HangUp, Held, Raw, Seen, Status, Turn
from tests.unit.gateway_cases import CASES, MESSAGES_CASE, RESPONSES_CASE, TURN, Case, at, put
from tests.unit.gateway_help import KEY, MODEL, line

PASSING = "orchestrator.adapters.model_gateway.passing"
WIRE = "orchestrator.adapters.model_gateway.wire"
SPENT = Usage(requests=1, input=100, cached=40, output=20, reasoning=5)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a reply be too long at a megabyte."""
    monkeypatch.setattr(f"{PASSING}.MAX_REPLY", 1024**2)
    monkeypatch.setattr(f"{WIRE}.MAX_EVENT", 512 * 1024)


@pytest.fixture(params=CASES, ids=lambda case: case.dialect)
def case(request: pytest.FixtureRequest) -> Case:
    chosen: Case = request.param
    return chosen


def spent(case: Case) -> Usage:
    """What the provider counts; Anthropic's does not tell reasoning apart."""
    return SPENT if case.dialect != "messages" else replace(SPENT, reasoning=0)


def test_a_stream_is_passed_on_byte_for_byte(case: Case, tmp_path: Path) -> None:
    with MockModels([TURN]) as models, line(models, tmp_path) as agent:
        reply = agent.post(case.path, case.streamed())
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.content == b"".join(case.events())
    exchange = agent.exchanges[0]
    assert exchange.usage == spent(case)
    assert exchange.ended is Ended.WHOLE
    assert exchange.reply.text == TURN.text
    assert exchange.reply.thought == TURN.thought
    assert exchange.reply.model == MODEL
    call = exchange.reply.calls[0]
    assert exchange.reply.calls == (ToolCall("bash", call.arguments),)
    assert json.loads(call.arguments) == TURN.arguments


def test_a_whole_reply_is_passed_on_byte_for_byte(case: Case, tmp_path: Path) -> None:
    with MockModels([TURN]) as models, line(models, tmp_path) as agent:
        reply = agent.post(case.whole_path, dict(case.body))
        assert agent.gateway.usage() == spent(case)
    assert reply.content == json.dumps(case.spelling.whole(TURN, MODEL)).encode()
    assert agent.exchanges[0].usage == spent(case)
    assert agent.exchanges[0].reply.text == TURN.text
    assert agent.exchanges[0].reply.thought == TURN.thought
    assert json.loads(agent.exchanges[0].reply.calls[0].arguments) == TURN.arguments


def test_an_event_reaches_the_agent_before_the_next_one_is_there(
    case: Case, tmp_path: Path
) -> None:
    go = threading.Event()
    sent = case.events()
    half = len(sent) // 2
    act = Held(TURN, go, half)
    with (
        MockModels([act]) as models,
        line(models, tmp_path) as agent,
        agent.http.stream("POST", case.path, json=case.streamed()) as reply,
    ):
        heard = b""
        for piece in reply.iter_raw():
            heard += piece
            if heard == b"".join(sent[:half]):
                go.set()  # never, if the gateway kept anything back
    assert heard == b"".join(sent)


def test_the_provider_gets_the_key_and_nothing_of_the_agents_own(
    case: Case, tmp_path: Path
) -> None:
    own = {
        "authorization": "Bearer dummy",
        "x-api-key": "dummy",
        "cookie": "a=b",
        "openai-organization": "someone",
        "anthropic-version": "2023-06-01",
    }
    with MockModels([TURN]) as models, line(models, tmp_path) as agent:
        agent.post(case.path, case.streamed(), headers=own)
    seen = models.asked[0]
    assert seen.path == case.upstream_path
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert not {"x-api-key", "cookie", "openai-organization"} & seen.headers.keys()
    assert seen.headers["accept-encoding"] == "identity"
    assert seen.body.get("model", MODEL) == MODEL
    assert ("anthropic-version" in seen.headers) == (case.dialect == "messages")


def test_another_model_is_refused_in_the_dialects_own_form(case: Case, tmp_path: Path) -> None:
    path = case.path.replace(MODEL, "other-2")
    with MockModels() as models, line(models, tmp_path) as agent:
        reply = agent.post(path, case.streamed(model="other-2"))
    assert reply.status_code == 404
    assert "other-2" in case.message(reply.json())
    assert MODEL in case.message(reply.json())
    assert not models.asked
    assert agent.exchanges[0].refusal is Refusal.OTHER_MODEL


def test_a_declared_auxiliary_model_becomes_what_was_declared(case: Case, tmp_path: Path) -> None:
    path = case.path.replace(MODEL, "small-1")
    auxiliary = {"small-1": MODEL}
    with MockModels() as models, line(models, tmp_path, auxiliary=auxiliary) as agent:
        reply = agent.post(path, case.streamed(model="small-1"))
    assert reply.status_code == 200
    assert models.asked[0].path == case.upstream_path
    assert models.asked[0].body.get("model", MODEL) == MODEL


def test_the_effort_is_the_runs_own_whatever_a_request_says(case: Case, tmp_path: Path) -> None:
    same, other = put(case.effort_at, "high"), put(case.effort_at, "low")
    with MockModels() as models:
        with line(models, tmp_path, effort="high") as agent:
            absent = agent.post(case.path, case.streamed())
            equal = agent.post(case.path, case.streamed(**same))
            another = agent.post(case.path, case.streamed(**other))
        with line(models, tmp_path, record="second.jsonl") as agent:
            left_out = agent.post(case.path, case.streamed(**other))
    assert (absent.status_code, equal.status_code, left_out.status_code) == (200, 200, 200)
    assert [at(seen.body, case.effort_at) for seen in models.asked] == ["high", "high", None]
    assert len(case.effort_at) == 1 or case.effort_at[0] not in models.asked[2].body
    assert another.status_code in {400, 403}
    assert "'low' is not the effort of this run, 'high'" in case.message(another.json())


def test_a_field_that_nobody_knows_is_left_out_and_named(case: Case, tmp_path: Path) -> None:
    with MockModels() as models, line(models, tmp_path) as agent:
        reply = agent.post(case.path, case.streamed(brand_new={"a": 1}))
    assert reply.status_code == 200
    assert "brand_new" not in models.asked[0].body
    assert agent.exchanges[0].dropped == ("brand_new",)


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (Budget(requests=1), "requests 1 of 1"),
        (Budget(tokens=120), "tokens 120 of 120"),
        (Budget(cost=0.0003), "cost 0.0003 of 0.0003"),
    ],
)
def test_a_budget_that_is_used_up_is_said_and_nothing_more_is_asked(
    case: Case, budget: Budget, words: str, tmp_path: Path
) -> None:
    prices = {MODEL: {"input": 2.0, "output": 5.0, "cached": 2.0}}
    with MockModels() as models, line(models, tmp_path, budget=budget, prices=prices) as agent:
        first = agent.post(case.path, case.streamed())
        second = agent.post(case.path, case.streamed())
        assert agent.gateway.usage().requests == 1
        assert agent.gateway.usage().cost == pytest.approx(0.0003)
    assert first.status_code == 200
    assert second.status_code in {400, 403}
    assert words in case.message(second.json())
    assert len(models.asked) == 1


def test_a_provider_that_stumbles_is_asked_again(case: Case, tmp_path: Path) -> None:
    acts = [Status(503), Status(429, headers={"retry-after": "0.01"}), TURN]
    with MockModels(acts) as models, line(models, tmp_path) as agent:
        reply = agent.post(case.path, case.streamed())
    assert reply.content == b"".join(case.events())
    assert agent.exchanges[0].tries == 3
    assert len(models.asked) == 3


def test_a_failure_that_lasts_is_told_in_the_providers_own_words(
    case: Case, tmp_path: Path
) -> None:
    said = b'{"error": {"message": "overloaded, says the provider"}}'
    with MockModels([Status(529, said)] * 3) as models, line(models, tmp_path) as agent:
        reply = agent.post(case.path, case.streamed())
        assert agent.gateway.usage() == Usage(requests=1)
    assert (reply.status_code, reply.content) == (529, said)
    assert len(models.asked) == 3


def test_a_failure_that_asking_again_cannot_mend_is_passed_on_at_once(
    case: Case, tmp_path: Path
) -> None:
    said = b'{"error": {"message": "that is no request"}}'
    with MockModels([Status(400, said)]) as models, line(models, tmp_path) as agent:
        reply = agent.post(case.path, case.streamed())
    assert (reply.status_code, reply.content) == (400, said)
    assert len(models.asked) == 1


def test_a_stream_that_breaks_off_breaks_off_for_the_agent(case: Case, tmp_path: Path) -> None:
    heard: list[bytes] = []
    with MockModels([Cut(TURN, 1)]) as models, line(models, tmp_path) as agent:
        with agent.http.stream("POST", case.path, json=case.streamed()) as reply:
            pieces = reply.iter_raw()
            with pytest.raises(httpx.RemoteProtocolError):
                heard.extend(pieces)
        usage = agent.gateway.usage()
    assert b"".join(heard) == case.events()[0]
    assert agent.exchanges[0].ended is Ended.CUT
    assert usage.tokens > 0
    assert usage.estimated > 0 or case.dialect == "messages"


def test_a_stream_that_ends_too_early_is_recorded_as_incomplete(case: Case, tmp_path: Path) -> None:
    with MockModels([Ending(TURN, 1)]) as models, line(models, tmp_path) as agent:
        reply = agent.post(case.path, case.streamed())
    assert reply.content == case.events()[0]
    assert agent.exchanges[0].ended is Ended.INCOMPLETE


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("act", "ended"),
    [
        (Raw(b"data: {not json\n\n"), Ended.MALFORMED),
        (Raw(b"data: [1, 2]\n\n"), Ended.MALFORMED),
        (Raw(b"data: " + b"[" * 100_000 + b"\n\n"), Ended.MALFORMED),
        (Raw(b": ping\n\n" * 8000, endless=True), Ended.TOO_LONG),
        (Raw(b"x" * 65536, endless=True), Ended.TOO_LONG),
    ],
    ids=["no-json", "no-object", "deep", "endless-pings", "endless-line"],
)
def test_a_senseless_stream_ends_with_an_error_of_the_dialect(
    case: Case, act: Raw, ended: Ended, tmp_path: Path
) -> None:
    with MockModels([act]) as models, line(models, tmp_path) as agent:
        reply = agent.post(case.path, case.streamed())
    last = reply.content.rstrip().rpartition(b"data: ")[2]
    assert "the provider's" in json.dumps(json.loads(last))
    assert agent.exchanges[0].ended is ended


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("act", "words"),
    [
        (Raw(b"<html>log in</html>", "text/html"), "no JSON object"),
        (Raw(b"[1]", "application/json"), "no JSON object"),
        (Raw(b'{"a": "' + b"b" * 65536, "application/json", endless=True), "longer than"),
        (Cut(TURN), "broke off"),
        (HangUp(), "does not answer"),
        (Status(302, b"", {"location": "http://elsewhere/"}), "HTTP 302"),
        (Status(404, b"<html>nothing here</html>"), "HTTP 404"),
        (Raw(b"\x1f\x8b", "application/json", {"content-encoding": "gzip"}), "packs its replies"),
    ],
    ids=["html", "list", "endless", "cut", "hang-up", "redirect", "html-404", "packed"],
)
def test_a_senseless_reply_becomes_an_error_that_the_agent_can_read(
    case: Case, act: Any, words: str, tmp_path: Path
) -> None:
    with MockModels(lambda _: act) as models, line(models, tmp_path) as agent:
        reply = agent.post(case.whole_path, dict(case.body))
    assert reply.status_code == 502
    assert words in case.message(reply.json())
    assert agent.exchanges[0].refusal is Refusal.UPSTREAM


def test_an_agent_that_does_not_wait_is_charged_for_what_it_asked(
    case: Case, tmp_path: Path
) -> None:
    go = threading.Event()
    with MockModels([Held(TURN, go, 1)]) as models, line(models, tmp_path) as agent:
        with agent.http.stream("POST", case.path, json=case.streamed()) as reply:
            next(reply.iter_raw())
        while not agent.exchanges:
            threading.Event().wait(0.01)
        go.set()
        assert agent.gateway.usage().tokens > 0
    assert agent.exchanges[0].ended is Ended.LEFT


def test_an_agent_that_leaves_before_any_answer_pays_for_its_question(tmp_path: Path) -> None:
    asked, go = threading.Event(), threading.Event()

    def act(_: Seen) -> Turn:
        asked.set()
        go.wait(60)
        return TURN

    body = {**CASES[0].body, "messages": [{"role": "user", "content": "x" * 40_000}]}
    with MockModels(act) as models, line(models, tmp_path) as agent:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(agent.gateway.socket))
            sent = json.dumps(body).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(sent)}"
            connection.sendall(head.encode() + b"\r\n\r\n" + sent)
            assert asked.wait(30)
        while not agent.exchanges:
            threading.Event().wait(0.01)
        go.set()
        assert agent.gateway.usage().input > 10_000
    assert agent.exchanges[0].ended is Ended.LEFT


def test_a_key_that_a_provider_repeats_is_passed_on_to_nobody(case: Case, tmp_path: Path) -> None:
    told = Turn(text=f"your key is {KEY} is it not")
    said = json.dumps({"error": {"message": f"wrong key: {KEY}"}}).encode()
    with MockModels([told, told, Status(401, said)]) as models, line(models, tmp_path) as agent:
        streamed = agent.post(case.path, case.streamed()).content
        whole = agent.post(case.whole_path, dict(case.body)).content
        refused = agent.post(case.path, case.streamed()).content
    blot = b"*" * len(KEY)
    for reply in (streamed, whole, refused):
        assert KEY.encode() not in reply
        assert blot in reply
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes(), file


def test_a_key_in_a_header_of_a_reply_is_passed_on_to_nobody(tmp_path: Path) -> None:
    act = Status(400, b"{}", {"x-request-id": f"for {KEY}"})
    with MockModels(default=act) as models, line(models, tmp_path) as agent:
        reply = agent.post(CASES[0].whole_path, CASES[0].body)
    assert reply.headers["x-request-id"] == f"for {'*' * len(KEY)}"


@pytest.mark.parametrize("key", [[1], {"a": 1}, None, 7])
def test_a_tool_call_may_be_named_by_anything(key: object, tmp_path: Path) -> None:
    call = {"type": "function_call", "call_id": key, "name": "bash", "arguments": "{}"}
    reply = Status(200, json.dumps({"status": "completed", "output": [call]}).encode())
    delta = {"type": "content_block_delta", "index": key, "delta": {"partial_json": "{}"}}
    stream = Raw(b"data: " + json.dumps(delta).encode() + b"\n\n", "text/event-stream")
    with MockModels([reply, stream]) as models, line(models, tmp_path) as agent:
        agent.post(RESPONSES_CASE.whole_path, RESPONSES_CASE.body)
        agent.post(MESSAGES_CASE.path, MESSAGES_CASE.streamed())
        assert agent.gateway.failed() is None
    assert [exchange.reply.calls[0].arguments for exchange in agent.exchanges] == ["{}", "{}"]


@pytest.mark.parametrize(
    "act",
    [
        Status(400, b"{}", {"x-request-id": "\xe2\x86\x92"}),
        Status(429, b"{}", {"retry-after": "\xb2"}),
        Status(999, b"{}"),
    ],
    ids=["letters", "digits", "status"],
)
def test_a_reply_in_senseless_http_ends_no_run(act: Status, tmp_path: Path) -> None:
    with MockModels(default=act) as models, line(models, tmp_path) as agent:
        reply = agent.post(CASES[0].whole_path, CASES[0].body)
        assert agent.gateway.failed() is None
    assert reply.status_code in {400, 429, 502}
