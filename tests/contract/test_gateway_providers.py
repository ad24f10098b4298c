"""Each kind of authentication, the ways to a provider, its limits and its absence."""

import datetime as dt
import ipaddress
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from orchestrator.adapters.model_gateway.sigv4 import AwsKey, signed_headers
from orchestrator.errors import StorageFullError, UsageError
from orchestrator.ports.models import Gateway
from tests.e2e.rig import until
from tests.mock_models.server import MockModels
from tests.mock_models.turns import Act, Endless, HangUp, Seen, Status, Turn
from tests.unit.gateway_cases import CHAT_CASE, GEMINI_CASE, MESSAGES_CASE
from tests.unit.gateway_help import KEY, MODEL, SOON, line


@pytest.mark.parametrize(
    ("auth", "header", "value"),
    [
        ("bearer", "authorization", f"Bearer {KEY}"),
        ("x-api-key", "x-api-key", KEY),
        ("x-goog-api-key", "x-goog-api-key", KEY),
        ("azure", "api-key", KEY),
        ("vertex", "authorization", f"Bearer {KEY}"),
    ],
)
def test_a_key_is_shown_in_the_providers_way(
    auth: str, header: str, value: str, tmp_path: Path
) -> None:
    with MockModels() as models, line(models, tmp_path, auth=auth) as agent:
        assert agent.post(CHAT_CASE.path, CHAT_CASE.streamed()).status_code == 200
    headers = models.asked[0].headers
    assert headers[header] == value
    assert [name for name, found in headers.items() if KEY in found] == [header]


def test_no_key_is_shown_where_none_is_needed(tmp_path: Path) -> None:
    with (
        MockModels() as models,
        line(models, tmp_path, auth="none", key_variable=None) as agent,
    ):
        agent.post(CHAT_CASE.path, CHAT_CASE.streamed())
    assert "authorization" not in models.asked[0].headers


def test_azure_is_told_a_version_in_the_query(tmp_path: Path) -> None:
    with (
        MockModels() as models,
        line(models, tmp_path, auth="azure", api_version="2024-10-21") as agent,
    ):
        agent.post(CHAT_CASE.path, CHAT_CASE.streamed(), params={"api-version": "1"})
    assert models.asked[0].query == {"api-version": "2024-10-21"}


def test_bedrock_gets_a_signature_over_what_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SESSION_TOKEN": "session-token-123"}
    with (
        MockModels() as models,
        line(models, tmp_path, keys=names, auth="bedrock", region="eu-west-1") as agent,
    ):
        assert agent.post(CHAT_CASE.path, CHAT_CASE.streamed()).status_code == 200
    seen = models.asked[0]
    moment = dt.datetime.strptime(seen.headers["x-amz-date"], "%Y%m%dT%H%M%S%z")
    expected = signed_headers(
        AwsKey("AKIDEXAMPLE", KEY, "session-token-123"),
        method="POST",
        url=models.base_url + "/chat/completions",
        headers={"content-type": seen.headers["content-type"]},
        body=seen.raw,
        region="eu-west-1",
        service="bedrock",
        now=moment,
    )
    assert seen.headers.items() >= expected.items()
    assert KEY not in str(seen.headers)


def test_vertex_tokens_come_from_a_command_and_are_renewed_when_refused(tmp_path: Path) -> None:
    count = tmp_path / "count"
    script = f'echo x >> {count}; printf "token-%s-0123456789\\n" "$(wc -l < {count})"'
    acts = [Turn(text="a"), Status(401), Turn(text="b")]
    with (
        MockModels(acts) as models,
        line(
            models,
            tmp_path,
            auth="vertex",
            key_variable=None,
            token_command=("sh", "-c", script),
        ) as agent,
    ):
        codes = [agent.post(CHAT_CASE.path, CHAT_CASE.streamed()).status_code for _ in range(3)]
    assert codes == [200, 401, 200]
    shown = [seen.headers["authorization"] for seen in models.asked]
    first, second = "Bearer token-1-0123456789", "Bearer token-2-0123456789"
    assert shown == [first, first, second]
    assert b"token-" not in agent.record.read_bytes()


def test_a_token_command_that_fails_is_told_as_the_providers_absence(tmp_path: Path) -> None:
    with (
        MockModels() as models,
        line(models, tmp_path, auth="vertex", key_variable=None, token_command=("false",)) as agent,
    ):
        reply = agent.post(CHAT_CASE.path, CHAT_CASE.streamed())
    assert reply.status_code == 502
    assert "false printed no token: exit 1" in CHAT_CASE.message(reply.json())
    assert not models.asked


def test_vertex_takes_messages_and_contents_under_paths_of_its_own(tmp_path: Path) -> None:
    turn = Turn(text="hello")
    with MockModels([turn] * 4) as models, line(models, tmp_path, auth="vertex") as agent:
        streamed = agent.post(MESSAGES_CASE.path, MESSAGES_CASE.streamed())
        whole = agent.post(MESSAGES_CASE.path, dict(MESSAGES_CASE.body))
        agent.post("/v1/messages/count_tokens", dict(MESSAGES_CASE.body))
        agent.post(GEMINI_CASE.path, GEMINI_CASE.streamed())
    assert streamed.content == b"".join(MESSAGES_CASE.events(turn))
    assert whole.json()["content"] == [{"type": "text", "text": "hello"}]
    assert [seen.path for seen in models.asked] == [
        f"/v1/models/{MODEL}:streamRawPredict",
        f"/v1/models/{MODEL}:rawPredict",
        "/v1/models/count-tokens:rawPredict",
        f"/v1/models/{MODEL}:streamGenerateContent",
    ]
    sent = models.asked[0].body
    assert sent["anthropic_version"] == "vertex-2023-10-16"
    assert "model" not in sent


class _Proxy(BaseHTTPRequestHandler):
    """Forwards requests of plain HTTP, and notes whose they were."""

    passed: list[str]

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        self.passed.append(self.path)
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {"content-type": "application/json"}
        reply = httpx.post(self.path, content=body, headers=headers, trust_env=False)
        self.send_response(reply.status_code)
        self.send_header("content-type", reply.headers["content-type"])
        self.send_header("content-length", str(len(reply.content)))
        self.end_headers()
        self.wfile.write(reply.content)


@contextmanager
def served(server: ThreadingHTTPServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_proxy_on_the_way_is_used_where_it_is_configured_and_only_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _Proxy.passed = []
    with MockModels() as models, served(ThreadingHTTPServer(("127.0.0.1", 0), _Proxy)) as port:
        with line(models, tmp_path, proxy=f"http://127.0.0.1:{port}") as agent:
            assert agent.post(CHAT_CASE.path, CHAT_CASE.streamed()).status_code == 200
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
        monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
        with line(models, tmp_path, record="second.jsonl") as agent:
            assert agent.post(CHAT_CASE.path, CHAT_CASE.streamed()).status_code == 200
    assert _Proxy.passed == [models.base_url + "/chat/completions"]


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for this host's loopback, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mock models")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public, private = folder / "cert.pem", folder / "key.pem"
    public.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return public, private


def test_a_bundle_of_certificates_is_trusted_in_place_of_the_usual_ones(tmp_path: Path) -> None:
    public, private = certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(public, private)
    with MockModels(tls=tls) as models:
        url = models.base_url.replace("http:", "https:")
        with line(models, tmp_path, base_url=url, ca_bundle=str(public)) as agent:
            assert agent.post(CHAT_CASE.path, CHAT_CASE.streamed()).status_code == 200
        once = replace(SOON, probe_every=3600)  # no look is under way when the gateway closes
        with line(models, tmp_path, base_url=url, patience=once, record="second.jsonl") as agent:
            reply = agent.post(CHAT_CASE.path, CHAT_CASE.streamed())
    assert reply.status_code == 502
    assert "ConnectError" in CHAT_CASE.message(reply.json())


def test_a_bundle_that_cannot_be_read_is_the_operators_error(tmp_path: Path) -> None:
    with (
        MockModels() as models,
        pytest.raises(UsageError, match="ca_bundle"),
        line(models, tmp_path, ca_bundle="/nonexistent.pem"),
    ):
        pass


def test_all_attempts_with_one_key_share_its_slots(tmp_path: Path) -> None:
    inside, most, lock = [0], [0], threading.Lock()

    def act(_: Seen) -> Act:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        threading.Event().wait(0.05)
        with lock:
            inside[0] -= 1
        return Turn(text="x")

    def ask(agent: object, codes: list[int]) -> None:
        reply = agent.post(CHAT_CASE.path, dict(CHAT_CASE.body))  # type: ignore[attr-defined]
        codes.append(reply.status_code)

    codes: list[int] = []
    with (
        MockModels(act) as models,
        line(models, tmp_path, concurrency=2) as one,
        line(models, tmp_path, concurrency=2, record="second.jsonl") as other,
    ):
        asking = [threading.Thread(target=ask, args=(agent, codes)) for agent in (one, other) * 4]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
    assert codes == [200] * 8
    assert most[0] <= 2


def test_a_wait_that_a_provider_asks_for_holds_for_every_attempt(tmp_path: Path) -> None:
    acts = [Status(429, headers={"retry-after": "0.5"}), Turn(text="x"), Turn(text="y")]
    arrived: list[float] = []

    def act(_: Seen) -> Act:
        arrived.append(time.monotonic())
        return acts[len(arrived) - 1]

    with (
        MockModels(act) as models,
        line(models, tmp_path, longest_wait=5.0) as one,
        line(models, tmp_path, record="second.jsonl") as other,
    ):
        first = threading.Thread(target=one.post, args=(CHAT_CASE.path, CHAT_CASE.body))
        first.start()
        while not arrived:
            threading.Event().wait(0.005)
        while not list((tmp_path / "host").rglob("*.pause")):
            threading.Event().wait(0.005)
        assert other.post(CHAT_CASE.path, dict(CHAT_CASE.body)).status_code == 200
        first.join()
    assert arrived[1] - arrived[0] >= 0.45
    assert arrived[2] - arrived[0] >= 0.45


def test_a_provider_that_wants_a_long_wait_is_left_to_the_agent(tmp_path: Path) -> None:
    said = Status(429, headers={"retry-after": "3600"})
    with MockModels([said]) as models, line(models, tmp_path) as agent:
        reply = agent.post(CHAT_CASE.path, dict(CHAT_CASE.body))
    assert reply.status_code == 429
    assert reply.headers["retry-after"] == "3600"
    assert len(models.asked) == 1


def test_a_provider_that_stays_away_is_proven_away_by_the_hosts_own_probe(tmp_path: Path) -> None:
    with MockModels() as models, line(models, tmp_path, max_outage=0.2) as agent:
        assert agent.post(CHAT_CASE.path, dict(CHAT_CASE.body)).status_code == 200
        assert agent.gateway.failed() is None
        models.present = False
        assert agent.post(CHAT_CASE.path, dict(CHAT_CASE.body)).status_code == 503
        while agent.gateway.failed() is None:
            threading.Event().wait(0.01)
        said = agent.gateway.failed()
        models.present = True
        while agent.gateway.failed() is not None:
            threading.Event().wait(0.01)
        assert agent.gateway.outage() > 0.2
    assert said is not None
    assert "max_outage" in said
    assert "HTTP 503" in said
    probes = [seen for seen in models.seen if seen.method == "GET"]
    assert {seen.path for seen in probes} == {"/v1/models"}


def test_a_request_that_alone_fails_is_no_outage(tmp_path: Path) -> None:
    """An agent may compose a request that the provider fails at."""
    with MockModels([HangUp()] * 3) as models, line(models, tmp_path, max_outage=0.0) as agent:
        assert agent.post(CHAT_CASE.path, dict(CHAT_CASE.body)).status_code == 502
        while not any(seen.method == "GET" for seen in models.seen):
            threading.Event().wait(0.01)
        assert agent.post(CHAT_CASE.path, dict(CHAT_CASE.body)).status_code == 200
        assert agent.gateway.outage() == 0
        assert agent.gateway.failed() is None


def test_a_provider_that_is_nowhere_is_an_outage(tmp_path: Path) -> None:
    with MockModels() as models:
        pass
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))  # nobody listens, and nobody else gets the port
        gone = f"http://127.0.0.1:{mute.getsockname()[1]}/v1"
        with line(models, tmp_path, base_url=gone, max_outage=0.1) as agent:
            reply = agent.post(CHAT_CASE.path, dict(CHAT_CASE.body))
            said = until(agent.gateway.failed)
    assert reply.status_code == 502
    assert said is not None
    assert "ConnectError" in said


EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
OBJECT = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{"
FAILURE = b"HTTP/1.1 500 No\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\n"
ENDLESS = {
    "hints": Endless(b"", b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"),
    "slow hints": Endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.02),
    "header": Endless(HEAD, b"x-more: y\r\n" * 100),
    "slow header": Endless(HEAD, b"x", 0.02),
    "comments": Endless(EVENTS, b": working\n\n", 0.02),
    "object": Endless(OBJECT, b" ", 0.02),
    "failure": Endless(FAILURE, b"x", 0.02),
}


@pytest.mark.parametrize("act", ENDLESS.values(), ids=ENDLESS)
def test_a_provider_that_never_ends_gives_its_slot_free(act: Endless, tmp_path: Path) -> None:
    head = 30.0 if act.first == EVENTS else 1.0  # that one's head does come
    brief = replace(SOON, attempts=1, head=head, failure=0.3, reply=0.3)
    script = MockModels(lambda seen: act if b"endless" in seen.raw else Turn(text="x"))
    with script as models, line(models, tmp_path, concurrency=1, patience=brief) as agent:
        first = agent.post(CHAT_CASE.path, CHAT_CASE.streamed(stop="endless"))
        until(lambda: agent.post(CHAT_CASE.path, CHAT_CASE.streamed()).status_code == 200)
    assert first.status_code == (200 if act.first == EVENTS else 502)
    assert b"the provider" in first.content.rpartition(b"data: ")[2]


def _is_full(gateway: Gateway) -> bool:
    try:
        gateway.failed()
    except StorageFullError:
        return True
    return False


def test_a_full_disk_under_the_record_ends_the_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = "orchestrator.adapters.model_gateway.record.os.write"
    with MockModels() as models, line(models, tmp_path, watched=False) as agent:
        monkeypatch.setattr(write, lambda _descriptor, _data: 1)
        agent.post(CHAT_CASE.path, dict(CHAT_CASE.body))
        until(lambda: _is_full(agent.gateway))  # an exchange is recorded when it is over
        reply = agent.post(CHAT_CASE.path, dict(CHAT_CASE.body))
        monkeypatch.undo()
        assert reply.status_code == 502
        with pytest.raises(StorageFullError):
            agent.gateway.failed()
    assert len(models.asked) == 1


def test_only_the_agents_user_may_connect_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with MockModels() as models, line(models, tmp_path) as agent:
        socket = agent.gateway.socket
        assert socket.stat().st_mode & 0o777 == 0o600
        assert socket.parent.stat().st_mode & 0o777 == 0o700
        if os.geteuid() == 0:
            assert socket.stat().st_uid == 65534
        assert len(str(socket)) <= 100
        agent.gateway.close()
    assert not socket.parent.exists()
