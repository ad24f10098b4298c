"""An agent that means harm to the gateway, or through it to others with the same key."""

import gzip
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrator.domain.model import Ended
from tests.e2e.rig import until
from tests.mock_models.server import MockModels
from tests.mock_models.turns import Held, Raw, Seen, Turn
from tests.unit.gateway_cases import CHAT_CASE, MESSAGES_CASE
from tests.unit.gateway_help import MODEL, Line, line

APP = "orchestrator.adapters.model_gateway.app"
PACKED = {"content-encoding": "gzip"}


def ask(agent: Line, body: dict[str, Any]) -> socket.socket:
    """Send a request and read nothing of its reply."""
    sent = json.dumps(body).encode()
    head = f"POST {CHAT_CASE.path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(sent)}\r\n\r\n"
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(agent.gateway.socket))
    connection.sendall(head.encode() + sent)
    return connection


def test_an_agent_that_reads_nothing_keeps_no_slot_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{APP}.STANDSTILL", 0.2)
    monkeypatch.setattr(f"{APP}._LOOK_EVERY", 0.1)
    chunk = b'data: {"choices": [{"index": 0, "delta": {"content": "' + b"x" * 60_000 + b'"}}]}\n\n'
    endless = Raw(chunk, endless=True)
    script = MockModels(lambda seen: endless if b"endless" in seen.raw else Turn(text="x"))
    with (
        script as models,
        line(models, tmp_path, concurrency=1) as idle,
        line(models, tmp_path, concurrency=1, record="second.jsonl") as other,
    ):
        connection = ask(idle, CHAT_CASE.streamed(stop="endless"))
        while not models.asked:
            threading.Event().wait(0.01)
        assert other.post(CHAT_CASE.path, CHAT_CASE.streamed()).status_code == 200
        connection.close()
    assert idle.exchanges[0].ended is Ended.LEFT


def test_what_packed_requests_unpack_to_counts_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{APP}.MAX_BYTES_AT_ONCE", 1024**2)
    go, begun = threading.Event(), threading.Event()

    def act(_: Seen) -> Held:
        begun.set()
        return Held(Turn(text="x"), go, 0)

    body = CHAT_CASE.streamed(messages=[{"role": "user", "content": "x" * 600 * 1024}])
    packed = gzip.compress(json.dumps(body).encode())

    def post(agent: Line) -> int:
        return agent.http.post(CHAT_CASE.path, content=packed, headers=PACKED).status_code

    with MockModels(act) as models, line(models, tmp_path) as agent:
        first = threading.Thread(target=post, args=(agent,))
        first.start()
        assert begun.wait(30)
        assert post(agent) == 429
        go.set()
        first.join()
        until(lambda: post(agent) == 200)  # a request is over a little after its reply
    assert len(packed) < 10_000


SMUGGLED = b"POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
BODY = json.dumps(MESSAGES_CASE.body).encode()
TWO_MEANINGS = [
    b"content-length: %d\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
    % (len(BODY), len(BODY), BODY),
    b"content-length: %d\r\ncontent-length: 3\r\n\r\n%s" % (len(BODY), BODY),
    b"content-length: %d, 3\r\n\r\n%s" % (len(BODY), BODY),
    b"content-length: +%d\r\n\r\n%s" % (len(BODY), BODY),
    b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
    % (len(BODY), BODY),
    b"transfer-encoding: xchunked\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY),
    b"transfer-encoding: chunked\r\n\r\n%x;a=\n\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
    b"content-length : %d\r\n\r\n%s" % (len(BODY), BODY),
    b"x: a\rcontent-length: %d\r\n\r\n%s" % (len(BODY), BODY),
    b"x: a\r\n content-length: %d\r\n\r\n%s" % (len(BODY), BODY),
]


def test_no_second_request_is_smuggled_in_and_headers_say_nothing_to_the_provider(
    tmp_path: Path,
) -> None:
    own = b"anthropic-version: 2023-06-01\r\nx-api-key: a\r\nconnection: anthropic-version\r\n"
    with MockModels() as models, line(models, tmp_path) as agent:
        for rest in TWO_MEANINGS:
            with socket.socket(socket.AF_UNIX) as end:
                end.settimeout(30)
                end.connect(str(agent.gateway.socket))
                end.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\n" + own + rest + SMUGGLED)
                end.shutdown(socket.SHUT_WR)
                while end.recv(65536):
                    pass
        assert agent.post(MESSAGES_CASE.path, MESSAGES_CASE.streamed()).status_code == 200
    assert {seen.path for seen in models.asked} == {"/v1/messages"}
    assert all(seen.body["model"] == MODEL for seen in models.asked)
    assert not any("x-api-key" in seen.headers for seen in models.asked)


PATHS = [
    "/v1/%6dessages/../files",
    "/v1/messages%00",
    "/v1/messages%0d%0ax-y:%20z",
    "/v1/messages/count_tokens%3fbeta=true",
    "/v1/messages;x",
    "/v1/messages%23",
    "/v1/%2e%2e/v1/messages",
    "/V1/messages",
    "/v1/me%E1%BA%9Esages",
    f"/v1beta/models/{MODEL}%2f..%2fother:generateContent",
    f"/v1beta/models/{MODEL}:generateContent%0a",
    f"/v1beta/models/{MODEL}%3AgenerateContent:generateContent",
    f"/v1beta/models/..%2f{MODEL}:countTokens",
]


def test_no_spelling_of_a_path_reaches_another(tmp_path: Path) -> None:
    with MockModels() as models, line(models, tmp_path) as agent:
        codes = {path: agent.post(path, {"contents": []}).status_code for path in PATHS}
    assert {path: code for path, code in codes.items() if code != 404} == {}
    assert models.asked == []
