"""What does not pass the gateway, dialect by dialect, and what passes beside completions."""

import gzip
import json
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.domain.model import Refusal, Usage
from orchestrator.domain.task import Budget, ProviderTool
from tests.mock_models.server import MockModels
from tests.mock_models.turns import Held, Turn
from tests.unit.gateway_cases import (
    CASES,
    CHAT_CASE,
    GEMINI_CASE,
    MESSAGES_CASE,
    RESPONSES_CASE,
    Case,
)
from tests.unit.gateway_help import MODEL, line

APP = "orchestrator.adapters.model_gateway.app"
PNG = "data:image/png;base64,iVBORw0KGgo="


def says(case: Case, part: Mapping[str, Any]) -> dict[str, Any]:
    """Make a request whose one message holds ``part``."""
    if case is GEMINI_CASE:
        return {"contents": [{"role": "user", "parts": [part]}]}
    message = {"role": "user", "content": [part]}
    turns = "input" if case is RESPONSES_CASE else "messages"
    return {**case.body, turns: [message]}


TOOLS = [
    (CHAT_CASE, {"web_search_options": {"search_context_size": "low"}}, ProviderTool.WEB),
    (RESPONSES_CASE, {"tools": [{"type": "web_search"}]}, ProviderTool.WEB),
    (RESPONSES_CASE, {"tools": [{"type": "web_search_preview_2025_03_11"}]}, ProviderTool.WEB),
    (
        RESPONSES_CASE,
        {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]},
        ProviderTool.CODE,
    ),
    (RESPONSES_CASE, {"tools": [{"type": "computer_use_preview"}]}, ProviderTool.COMPUTER),
    (
        RESPONSES_CASE,
        {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]},
        ProviderTool.FILES,
    ),
    (
        RESPONSES_CASE,
        {"tools": [{"type": "mcp", "server_label": "x", "server_url": "https://x.example"}]},
        ProviderTool.CONNECTORS,
    ),
    (RESPONSES_CASE, {"tools": [{"type": "image_generation"}]}, ProviderTool.IMAGES),
    (RESPONSES_CASE, {"tools": [{"type": "shell"}]}, ProviderTool.CODE),
    *(
        (
            RESPONSES_CASE,
            {"tools": [{"type": "shell", "environment": {"type": place, **more}}]},
            ProviderTool.CODE,
        )
        for place, more in (
            ("container_auto", {"skills": [{"type": "skill_reference", "skill_id": "skill_1"}]}),
            ("container_reference", {"container_id": "cntr_1"}),
        )
    ),
    (
        RESPONSES_CASE,
        {"input": [{"type": "tool_search_output", "tools": [{"type": "web_search"}]}]},
        ProviderTool.WEB,
    ),
    (
        MESSAGES_CASE,
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        ProviderTool.WEB,
    ),
    (
        MESSAGES_CASE,
        {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]},
        ProviderTool.WEB,
    ),
    (
        MESSAGES_CASE,
        {"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]},
        ProviderTool.CODE,
    ),
    (
        MESSAGES_CASE,
        {"tools": [{"type": "computer_20250124", "name": "computer"}]},
        ProviderTool.COMPUTER,
    ),
    (
        MESSAGES_CASE,
        {"mcp_servers": [{"type": "url", "url": "https://x.example", "name": "x"}]},
        ProviderTool.CONNECTORS,
    ),
    (GEMINI_CASE, {"tools": [{"googleSearch": {}}]}, ProviderTool.WEB),
    (GEMINI_CASE, {"tools": [{"google_search": {}}]}, ProviderTool.WEB),
    (GEMINI_CASE, {"tools": {"urlContext": {}}}, ProviderTool.WEB),
    (GEMINI_CASE, {"tools": [{"codeExecution": {}}]}, ProviderTool.CODE),
    (GEMINI_CASE, {"tools": [{"computerUse": {}}]}, ProviderTool.COMPUTER),
    (GEMINI_CASE, {"tools": [{"fileSearch": {}}]}, ProviderTool.FILES),
]


@pytest.mark.parametrize(
    ("case", "field", "tool"), TOOLS, ids=lambda v: getattr(v, "dialect", None) or None
)
def test_a_tool_of_the_providers_passes_only_where_the_task_allows_it(
    case: Case, field: Mapping[str, Any], tool: ProviderTool, tmp_path: Path
) -> None:
    with MockModels() as models:
        with line(models, tmp_path) as agent:
            refused = agent.post(case.path, case.streamed(**field))
            assert agent.gateway.usage() == Usage()
        assert not models.asked
        with line(models, tmp_path, tools=frozenset({tool}), record="second.jsonl") as agent:
            passed = agent.post(case.path, case.streamed(**field))
    assert refused.status_code in {400, 403}
    assert "tools of the provider's own are not allowed" in case.message(refused.json())
    assert passed.status_code == 200
    assert len(models.asked) == 1


REFUSED_PARTS = [
    (CHAT_CASE, {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}),
    (CHAT_CASE, {"type": "file", "file": {"file_id": "file-1"}}),
    (CHAT_CASE, {"type": "video_url", "video_url": {"url": PNG}}),
    (RESPONSES_CASE, {"type": "input_image", "image_url": "http://169.254.169.254/latest"}),
    (RESPONSES_CASE, {"type": "input_image", "file_id": "file-1"}),
    (RESPONSES_CASE, {"type": "input_file", "file_url": "https://x.example/a.pdf"}),
    (RESPONSES_CASE, {"type": "input_file", "file_id": "file-1"}),
    (MESSAGES_CASE, {"type": "image", "source": {"type": "url", "url": "https://x.example"}}),
    (MESSAGES_CASE, {"type": "image", "source": {"type": "file", "file_id": "file_1"}}),
    (MESSAGES_CASE, {"type": "document", "source": {"type": "url", "url": "https://x.example"}}),
    (MESSAGES_CASE, {"type": "container_upload", "file_id": "file_1"}),
    (
        MESSAGES_CASE,
        {
            "type": "tool_result",
            "tool_use_id": "toolu_1",
            "content": [{"type": "image", "source": {"type": "url", "url": "https://x.example"}}],
        },
    ),
    (GEMINI_CASE, {"fileData": {"fileUri": "gs://bucket/a"}}),
    (GEMINI_CASE, {"file_data": {"file_uri": "https://x.example/a"}}),
    (
        GEMINI_CASE,
        {"functionResponse": {"name": "f", "parts": [{"fileData": {"fileUri": "gs://b/a"}}]}},
    ),
    *(
        (case, {"type": "input_audio", "input_audio": {"data": "https://x.example/a.mp3"}})
        for case in (CHAT_CASE, RESPONSES_CASE)
    ),
    (
        MESSAGES_CASE,
        {
            "type": "search_result",
            "source": "a",
            "title": "a",
            "content": [{"type": "image", "source": {"type": "url", "url": "https://x.example"}}],
        },
    ),
]


@pytest.mark.parametrize(
    ("case", "part"), REFUSED_PARTS, ids=lambda v: getattr(v, "dialect", None) or None
)
def test_nothing_that_a_provider_would_fetch_or_keeps_passes(
    case: Case, part: Mapping[str, Any], tmp_path: Path
) -> None:
    with MockModels() as models, line(models, tmp_path) as agent:
        reply = agent.post(case.whole_path, says(case, part))
    assert reply.status_code in {400, 403}
    assert case.message(reply.json())
    assert not models.asked
    assert agent.exchanges[0].refusal is Refusal.NOT_ALLOWED


INLINE_PARTS = [
    (CHAT_CASE, {"type": "image_url", "image_url": {"url": PNG}}),
    (RESPONSES_CASE, {"type": "input_image", "image_url": PNG}),
    (
        MESSAGES_CASE,
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}},
    ),
    (GEMINI_CASE, {"inlineData": {"mimeType": "image/png", "data": "iVBO"}}),
]


@pytest.mark.parametrize(
    ("case", "part"), INLINE_PARTS, ids=lambda v: getattr(v, "dialect", None) or None
)
def test_a_picture_that_the_request_itself_carries_passes(
    case: Case, part: Mapping[str, Any], tmp_path: Path
) -> None:
    with MockModels() as models, line(models, tmp_path) as agent:
        reply = agent.post(case.whole_path, says(case, part))
    assert reply.status_code == 200
    assert json.dumps(part) in json.dumps(models.asked[0].body)


RESPONSES_FIELDS = [
    {"previous_response_id": "resp_somebody_elses"},
    {"conversation": "conv_1"},
    {"prompt": {"id": "pmpt_1"}},
    {"background": True},
    {"input": [{"type": "item_reference", "id": "msg_somebody_elses"}]},
]


@pytest.mark.parametrize("field", RESPONSES_FIELDS, ids=lambda field: next(iter(field)))
def test_what_the_provider_keeps_of_others_is_out_of_reach(
    field: Mapping[str, Any], tmp_path: Path
) -> None:
    with MockModels() as models, line(models, tmp_path) as agent:
        reply = agent.post("/v1/responses", RESPONSES_CASE.streamed(**field))
    assert reply.status_code == 403
    assert not models.asked


def test_an_attempt_may_name_what_its_own_replies_named(tmp_path: Path) -> None:
    again = {
        "previous_response_id": "resp_1",
        "input": [
            {"type": "item_reference", "id": "msg_1"},
            {"type": "reasoning", "id": "rs_unheard_of", "summary": []},
        ],
    }
    with MockModels([Turn(text="one")]) as models, line(models, tmp_path) as agent:
        agent.post("/v1/responses", RESPONSES_CASE.streamed())
        reply = agent.post("/v1/responses", RESPONSES_CASE.streamed(**again))
    assert reply.status_code == 200
    sent = models.asked[1].body
    assert sent["previous_response_id"] == "resp_1"
    assert sent["input"] == [again["input"][0], {"type": "reasoning", "summary": []}]


@pytest.mark.parametrize("asked", [True, False, None])
def test_nothing_is_stored_at_the_provider(asked: bool | None, tmp_path: Path) -> None:
    store = {} if asked is None else {"store": asked}
    with MockModels() as models, line(models, tmp_path) as agent:
        agent.post("/v1/responses", RESPONSES_CASE.streamed(**store))
        agent.post("/v1/chat/completions", CHAT_CASE.streamed(**store))
    assert models.asked[0].body["store"] is False
    assert models.asked[1].body.get("store", False) is False


def test_a_chat_stream_is_asked_to_say_its_usage(tmp_path: Path) -> None:
    with MockModels() as models, line(models, tmp_path) as agent:
        agent.post("/v1/chat/completions", CHAT_CASE.streamed())
        agent.post("/v1/chat/completions", dict(CHAT_CASE.body))
    assert models.asked[0].body["stream_options"] == {"include_usage": True}
    assert "stream_options" not in models.asked[1].body


def test_tokens_are_counted_without_being_spent(tmp_path: Path) -> None:
    plain = {name: MESSAGES_CASE.body[name] for name in ("model", "messages")}
    counts = [
        ("/v1/messages/count_tokens?beta=true", plain, "/v1/messages/count_tokens"),
        ("/v1/responses/input_tokens", RESPONSES_CASE.body, "/v1/responses/input_tokens"),
        (
            f"/v1beta/models/{MODEL}:countTokens",
            {"generateContentRequest": {"model": f"models/{MODEL}", **GEMINI_CASE.body}},
            f"/v1/models/{MODEL}:countTokens",
        ),
    ]
    budget = Budget(requests=0)
    with MockModels() as models, line(models, tmp_path, budget=budget) as agent:
        for path, body, _ in counts:
            reply = agent.post(path, dict(body))
            assert reply.status_code == 200
            assert 12 in reply.json().values()
        assert agent.gateway.usage() == Usage()
    assert [seen.path for seen in models.asked] == [there for _, _, there in counts]


def test_compaction_passes_and_is_spent(tmp_path: Path) -> None:
    with MockModels() as models, line(models, tmp_path, effort="high") as agent:
        reply = agent.post("/v1/responses/compact", dict(RESPONSES_CASE.body))
        assert agent.gateway.usage().tokens == 120
    assert reply.status_code == 200
    assert models.asked[0].path == "/v1/responses/compact"
    assert models.asked[0].body == RESPONSES_CASE.body


def test_models_are_listed_without_asking_the_provider(tmp_path: Path) -> None:
    auxiliary = {"small-1": MODEL}
    with MockModels() as models, line(models, tmp_path, auxiliary=auxiliary) as agent:
        common = agent.http.get("/v1/models?client_version=1").json()
        gemini = agent.http.get("/v1beta/models").json()
        one = agent.http.get(f"/v1/models/{MODEL}").json()
        none = agent.http.get("/v1/models/other")
        alive = agent.http.head("/")
    assert [model["id"] for model in common["data"]] == [MODEL, "small-1"]
    assert [model["name"] for model in gemini["models"]] == [f"models/{MODEL}", "models/small-1"]
    assert one["id"] == MODEL
    assert none.status_code == 404
    assert alive.status_code == 200
    assert not models.seen


@pytest.mark.parametrize(
    "path",
    [
        "/v1/files",
        "/v1/responses/resp_1",
        "/v1/responses/",
        "/v1/chat/completions/../../files",
        "/v1/messages/batches",
        "/v1/embeddings",
        "//v1/responses",
        "/v1beta/models/a:embedContent",
        f"/v1beta/models/{MODEL}:streamGenerateContent/x",
        "/v1/messages%2fbatches",
    ],
)
def test_any_other_path_is_refused_and_recorded(path: str, tmp_path: Path) -> None:
    with MockModels() as models, line(models, tmp_path) as agent:
        reply = agent.post(path, {"model": MODEL})
        got = agent.http.get(path)
    assert (reply.status_code, got.status_code) == (404, 404)
    assert reply.json()["error"]
    assert not models.seen
    assert [exchange.refusal for exchange in agent.exchanges] == [Refusal.UNKNOWN_PATH] * 2


def test_a_dialect_that_the_provider_does_not_speak_is_refused(tmp_path: Path) -> None:
    with MockModels() as models, line(models, tmp_path, dialects=("chat",)) as agent:
        reply = agent.post("/v1/messages", MESSAGES_CASE.streamed())
    assert reply.status_code == 404
    assert "speaks chat, not messages" in reply.json()["error"]["message"]


def test_a_gemini_stream_without_events_is_refused(tmp_path: Path) -> None:
    with MockModels() as models, line(models, tmp_path) as agent:
        path = GEMINI_CASE.path.partition("?")[0]
        reply = agent.post(path, dict(GEMINI_CASE.body), params={"key": "dummy"})
    assert reply.status_code == 400
    assert "alt=sse" in reply.json()["error"]["message"]
    assert not models.asked


BAD_BODIES = [
    b"",
    b"not json",
    b"[]",
    b'{"model": "mock-1", "model": "other"}',
    b'{"model": NaN}',
    b'{"a": ' * 50_000,
    b'{"model": "mock-1", "messages": 5, "input": 5, "contents": "x"}',
    b'{"model": "mock-1", "messages": [5], "input": [5], "contents": [[]]}',
    b'{"model": ["mock-1"], "messages": [], "input": []}',
    b"\xff\xfe",
    b'{"model": "mock-1", "messages": [], "input": "x", "temperature": 1e999, "top_p": 1e999}',
    b'{"model": "mock-1", "messages": [], "input": "x", "tool_choice": '
    + b'{"a":' * 500
    + b"1"
    + b"}" * 501,
    b'{"model": "\xed\xa0\x80"}',
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.dialect)
def test_a_body_that_is_none_of_the_dialects_is_refused(case: Case, tmp_path: Path) -> None:
    with MockModels() as models, line(models, tmp_path) as agent:
        for body in BAD_BODIES:
            if case is GEMINI_CASE and b"messages" in body and b"contents" not in body:
                continue  # of another dialect: all its fields are left out
            reply = agent.http.post(case.path, content=body)
            assert reply.status_code in {400, 403, 404}, body
            assert case.message(reply.json())
    assert not models.asked


def test_a_refusal_is_short_however_long_the_name_of_a_field_is(tmp_path: Path) -> None:
    name = "tools" + "_" * 1024**2
    with MockModels() as models, line(models, tmp_path) as agent:
        reply = agent.post(GEMINI_CASE.whole_path, {**GEMINI_CASE.body, name: [{"urlContext": {}}]})
    assert reply.status_code == 403
    assert len(agent.exchanges[0].message) < 5_000
    assert agent.record.stat().st_size < 50_000


def test_half_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    body = b'{"model": "mock-1", "messages": [{"role": "user", "content": "\\ud800"}]}'
    with MockModels() as models, line(models, tmp_path) as agent:
        reply = agent.http.post("/v1/chat/completions", content=body)
    assert reply.status_code == 400
    assert not models.asked


def test_a_packed_request_is_unpacked_and_a_bomb_is_not(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps(CHAT_CASE.body).encode())
    bomb = gzip.compress(b" " * (33 * 1024**2))
    gz = {"content-encoding": "gzip"}
    with MockModels() as models, line(models, tmp_path) as agent:
        path = CHAT_CASE.path
        assert agent.http.post(path, content=packed, headers=gz).status_code == 200
        assert agent.http.post(path, content=bomb, headers=gz).status_code == 413
        assert agent.http.post(path, content=b"no", headers=gz).status_code == 400
        zstd = agent.http.post(path, content=packed, headers={"content-encoding": "zstd"})
        assert zstd.status_code == 400
        large = agent.http.post(path, content=b" " * (33 * 1024**2))
        assert large.status_code == 413
    assert len(models.asked) == 1


def test_an_agent_that_asks_too_much_at_once_is_told_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{APP}.MAX_AT_ONCE", 2)
    go, begun = threading.Event(), threading.Barrier(3)

    def first(agent: Any) -> None:
        with agent.http.stream("POST", CHAT_CASE.path, json=CHAT_CASE.streamed()) as reply:
            for number, _ in enumerate(reply.iter_raw()):
                if number == 0:
                    begun.wait(60)

    with MockModels([Held(Turn(text="x"), go, 1)] * 2) as models, line(models, tmp_path) as agent:
        others = [threading.Thread(target=first, args=(agent,)) for _ in range(2)]
        for other in others:
            other.start()
        begun.wait(60)
        reply = agent.post(CHAT_CASE.path, CHAT_CASE.streamed())
        go.set()
        for other in others:
            other.join()
    assert reply.status_code == 429
    assert reply.headers["retry-after"] == "1"
    assert len(models.asked) == 2


def test_betas_that_bring_abilities_are_not_passed_on(tmp_path: Path) -> None:
    betas = "interleaved-thinking-2025-05-14, files-api-2025-04-14,mcp-client-2025-04-04"
    with MockModels() as models, line(models, tmp_path) as agent:
        agent.post(MESSAGES_CASE.path, MESSAGES_CASE.streamed(), headers={"anthropic-beta": betas})
    assert models.asked[0].headers["anthropic-beta"] == "interleaved-thinking-2025-05-14"
    assert models.asked[0].query == {"beta": "true"}


def test_an_effort_in_numbers_is_a_budget_of_thinking(tmp_path: Path) -> None:
    with MockModels() as models, line(models, tmp_path, effort="4096") as agent:
        agent.post(MESSAGES_CASE.path, MESSAGES_CASE.streamed())
        agent.post(GEMINI_CASE.path, GEMINI_CASE.streamed())
    assert models.asked[0].body["thinking"] == {"budget_tokens": 4096, "type": "enabled"}
    thinking = models.asked[1].body["generationConfig"]["thinkingConfig"]
    assert thinking == {"thinkingBudget": 4096}


def test_an_agent_cannot_use_up_the_hosts_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.adapters.model_gateway.serving.MAX_CONNECTIONS", 3)
    answered: list[int] = []
    with MockModels() as models, line(models, tmp_path) as agent:
        idle = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for connection in idle:
            connection.connect(str(agent.gateway.socket))
        asking = threading.Thread(
            target=lambda: answered.append(
                agent.post(CHAT_CASE.path, CHAT_CASE.streamed()).status_code
            )
        )
        asking.start()
        asking.join(0.5)
        assert not answered
        for connection in idle:
            connection.close()
        asking.join()
    assert answered == [200]


def test_refusals_beyond_a_number_are_told_to_the_agent_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{APP}.MAX_REFUSALS", 3)
    with MockModels() as models, line(models, tmp_path) as agent:
        codes = {agent.post("/v1/files", {}).status_code for _ in range(5)}
        assert agent.post(CHAT_CASE.path, CHAT_CASE.streamed()).status_code == 200
    assert codes == {404}
    assert [exchange.number for exchange in agent.exchanges] == [1, 2, 3, 6]
    assert len(agent.record.read_text().splitlines()) == 1 + 4


RAW = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"POST /v1/messages HTTP/1.1\r\nhost: [\r\ncontent-length: 2\r\n\r\n{}",
    b"POST /v1/messages HTTP/1.1\r\nhost: x/v1/files?\r\ncontent-length: 2\r\n\r\n{}",
    b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
    b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nshort",
    b"POST http://elsewhere.example/v1/files HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
    b"CONNECT elsewhere.example:443 HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /v1/messages HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    b"GET /%ff%00/../%2e HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /v1/models?%ff=%00&a HTTP/1.1\r\nhost: x\r\n\r\n",
    b"x" * 100_000,
    b"\x16\x03\x01\x02\x00",
]


def test_bytes_that_are_no_request_of_an_agent_do_no_harm(tmp_path: Path) -> None:
    with MockModels() as models, line(models, tmp_path) as agent:
        for data in RAW:
            with socket.socket(socket.AF_UNIX) as end:
                end.settimeout(30)
                end.connect(str(agent.gateway.socket))
                end.sendall(data)
                end.shutdown(socket.SHUT_WR)
                end.recv(65536)
        reply = agent.post(
            MESSAGES_CASE.path,
            MESSAGES_CASE.streamed(),
            headers=[(b"anthropic-version", b"caf\xe9"), (b"host", b"[")],
        )
    assert reply.status_code == 200
    assert len(models.asked) == 1
    assert "anthropic-version" not in models.asked[0].headers


def test_a_body_of_too_many_values_is_not_even_parsed(tmp_path: Path) -> None:
    body = b'{"model": "mock-1", "logit_bias": [' + b"[]," * 600_000 + b'[]], "messages": []}'
    with MockModels() as models, line(models, tmp_path) as agent:
        reply = agent.http.post(CHAT_CASE.path, content=body)
    assert reply.status_code == 400
    assert "more than 1000000 values" in CHAT_CASE.message(reply.json())
