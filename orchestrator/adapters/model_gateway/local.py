"""A model that runs on this host in place of a provider, in one process for the attempt alone.

It is a base model: it goes on with a text, and knows neither turns nor tools. The conversation is
written out as a play, and what it adds up to the next speaker is the reply.
"""

import asyncio
import json
import os
import resource
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from typing_extensions import override

from orchestrator.adapters.local_models import InstalledModel, node
from orchestrator.adapters.model_gateway.shape import RefusedError
from orchestrator.adapters.model_gateway.source import Answer, Ask, BrokenOffError, Source
from orchestrator.domain.model import Refusal
from orchestrator.errors import InfrastructureError
from orchestrator.ports import Clock

CONTEXT = 4096
"""Tokens of prompt and reply together; of a longer prompt the beginning is left out."""
LONGEST = 256
"""Tokens of a reply, where none or more are asked for: such a model says nothing new after them."""

_RUNNER = Path(__file__).with_name("local_runner.mjs")
_HEAP = "--max-old-space-size=256"
_MEMORY = 3 * 1024**3
_START_WALL = 120.0
_SHOWN = 300
_MAX_PROMPT = 256 * 1024
"""Characters; many more than the context holds, few enough to be read at once."""
_TEMPERATURE, _SEED = 0.7, 1
_SPEAKERS: Mapping[str, str] = {
    "system": "Instructions",
    "developer": "Instructions",
    "user": "User",
    "assistant": "Assistant",
    "tool": "Tool",
    "function": "Tool",
}
_STOPS = tuple(f"\n{speaker}:" for speaker in sorted(set(_SPEAKERS.values())))
_ENVIRONMENT: Mapping[str, str] = {"LANG": "C.UTF-8", "HOME": "/nonexistent"}
"""All that the process gets: no key of this host is in it."""


class LocalSource(Source):
    """Answers with a model of this host; one request at a time, the others wait."""

    def __init__(self, model: InstalledModel, name: str, clock: Clock) -> None:
        self._model = model
        self._name = name
        self._clock = clock
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the source
        self._ready = False
        self._talking = False
        self._closed = False
        self._number = 0

    @override
    @asynccontextmanager
    async def ask(self, ask: Ask) -> AsyncIterator[Answer]:
        request = _request(ask.body)
        async with self._turn:
            await self._started()
            await self._hushed()
            self._number += 1
            chunks = self._events() if ask.stream else self._object()
            kind = "text/event-stream" if ask.stream else "application/json"
            try:
                self._talking = True
                await self._tell(request)
                yield Answer(status=200, content_type=kind, chunks=chunks)
            finally:
                await self._hushed()

    @override
    async def close(self) -> None:
        self._closed = True
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        self._errors.close()

    async def _started(self) -> None:
        """Start the process with the first request; it ends with its input, and so with us."""
        if self._process is None:
            await self._start()
        if self._ready:
            return
        try:
            await asyncio.wait_for(self._heard(), _START_WALL)
        except TimeoutError as error:
            raise InfrastructureError(
                f"the local model {self._name} was not ready within {_START_WALL:.0f} seconds"
            ) from error
        self._ready = True

    async def _start(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *(node(), _HEAP, str(_RUNNER), str(self._model.runner.folder)),
            *(str(self._model.file), str(CONTEXT)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
            env=_ENVIRONMENT,
        )
        self._process = process
        with suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (_MEMORY, _MEMORY))

    async def _tell(self, value: Mapping[str, Any]) -> None:
        stdin = self._process.stdin if self._process else None
        if stdin is None or self._closed:
            raise self._gone()
        try:
            stdin.write(json.dumps(value).encode() + b"\n")
            await stdin.drain()
        except ConnectionError as error:
            raise self._gone() from error

    async def _heard(self) -> Mapping[str, Any]:
        """Read the next thing that the process says.

        Raises:
            BrokenOffError: we have ended it.
            InfrastructureError: it ended, or said what it never does.
        """
        stdout = self._process.stdout if self._process else None
        line = await stdout.readline() if stdout else b""
        try:
            value = json.loads(line)
        except ValueError as error:
            raise self._gone() from error
        if "end" in value:
            self._talking = False
        found: Mapping[str, Any] = value
        return found

    def _gone(self) -> Exception:
        """Say why nothing more is heard: we have ended the process, or it has ended by itself."""
        self._talking = False
        if self._closed:
            return BrokenOffError("the attempt has ended")
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _SHOWN))
        said = " ".join(self._errors.read().decode("utf-8", "replace").split())
        return InfrastructureError(
            f"the process of the local model {self._name} ended" + (f": {said}" if said else ""),
            remedy="see docs/models.md, A local model",
        )

    async def _hushed(self) -> None:
        """Have the process end what nobody waits for any more."""
        if not self._talking or self._closed:
            return
        await self._tell({"cancel": True})
        while self._talking and not self._closed:
            await self._heard()

    async def _object(self) -> AsyncIterator[bytes]:
        said: list[str] = []
        while "end" not in (heard := await self._heard()):
            said.append(str(heard["text"]))
        message = {"role": "assistant", "content": "".join(said).strip()}
        choice = {"index": 0, "message": message, "finish_reason": heard["end"]}
        yield json.dumps(self._form("", choices=[choice], usage=_usage(heard))).encode()

    async def _events(self) -> AsyncIterator[bytes]:
        yield self._event(_delta({"role": "assistant", "content": ""}))
        while "end" not in (heard := await self._heard()):
            yield self._event(_delta({"content": heard["text"]}))
        yield self._event(_delta({}, str(heard["end"])))
        yield _sse(json.dumps(self._form(".chunk", choices=[], usage=_usage(heard))))
        yield _sse("[DONE]")

    def _event(self, choice: Mapping[str, Any]) -> bytes:
        return _sse(json.dumps(self._form(".chunk", choices=[choice])))

    def _form(self, kind: str, **more: Any) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-local-{self._number}",
            "object": f"chat.completion{kind}",
            "created": int(self._clock.utc().timestamp()),
            "model": self._name,
            **more,
        }


def _sse(text: str) -> bytes:
    return f"data: {text}\n\n".encode()


def _delta(delta: Mapping[str, Any], end: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": end}


def _usage(heard: Mapping[str, Any]) -> dict[str, int]:
    asked, answered = int(heard["input"]), int(heard["output"])
    return {
        "prompt_tokens": asked,
        "completion_tokens": answered,
        "total_tokens": asked + answered,
    }


def _request(body: bytes) -> dict[str, Any]:
    """Say to the process what an agent asks.

    Raises:
        RefusedError: it is not of the dialect, or more than text.
    """
    asked = json.loads(body)
    try:
        limits = (asked.get("max_completion_tokens"), asked.get("max_tokens"))
        longest = min([LONGEST, *(int(limit) for limit in limits if limit is not None)])
        temperature, seed = asked.get("temperature"), asked.get("seed")
        request = {
            "prompt": prompt_of(asked["messages"]),
            "max_tokens": max(1, longest),
            "temperature": _TEMPERATURE if temperature is None else float(temperature),
            "seed": _SEED if seed is None else int(seed) % 2**31,
            "stop": [*_STOPS, *_own_stops(asked.get("stop"))],
        }
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise RefusedError(
            Refusal.MALFORMED, f"not a request for a chat completion: {error!r}"
        ) from error
    return request


def _own_stops(stop: Any) -> list[str]:
    stops = [stop] if isinstance(stop, str) else stop or []
    return [text for text in stops if isinstance(text, str) and text]


def prompt_of(messages: list[Mapping[str, Any]]) -> str:
    """Write a conversation out, up to the model's next words.

    Raises:
        RefusedError: it holds more than text.
        KeyError: a role is not known.
    """
    turns = [f"{_SPEAKERS[turn['role']]}: {_text(turn.get('content'))}" for turn in messages]
    return "\n\n".join((*turns, "Assistant:"))[-_MAX_PROMPT:]


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if any(part["type"] != "text" for part in content):
        raise RefusedError(Refusal.NOT_ALLOWED, "the local model reads nothing but text")
    return "\n".join(part["text"] for part in content)
