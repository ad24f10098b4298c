"""Passing a reply on, byte for byte, while a copy of it is read."""

import asyncio
from collections.abc import Callable, Mapping

from starlette.types import Send

from orchestrator.adapters.model_gateway.language import Collector, Language
from orchestrator.adapters.model_gateway.record import MAX_BODY
from orchestrator.adapters.model_gateway.secrets import Blotter, Vault
from orchestrator.adapters.model_gateway.shape import RefusedError
from orchestrator.adapters.model_gateway.source import Answer, BrokenOffError
from orchestrator.adapters.model_gateway.wire import (
    DONE,
    MAX_ERROR,
    MAX_REPLY,
    MAX_REPLY_VALUES,
    BadEventError,
    Events,
    TooLongError,
    parse_reply,
    read_reply,
    values_in,
)
from orchestrator.domain.model import Ended, Refusal

_OK = 200
_ERRORS = range(400, 600)
_JSON = "application/json"
_EVENTS = "text/event-stream"
_TOO_LONG = f"the provider's reply is longer than {MAX_REPLY} bytes, or has no end"
_BAD_EVENT = "the provider's stream holds what is no event of its dialect"


class Out:
    """The way back to the agent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._now = asyncio.get_running_loop().time
        self._since: float | None = None
        self.status = 0

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the status and the headers."""
        self.status = status
        listed = [(n.encode("latin-1"), v.encode("latin-1")) for n, v in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": listed})

    async def body(self, data: bytes, *, more: bool) -> None:
        """Send bytes; the last ones say so. This waits while the agent takes none."""
        self._since = self._now()
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
        self._since = None

    async def whole(self, status: int, data: bytes, headers: Mapping[str, str]) -> None:
        """Send everything at once."""
        await self.start(status, {**headers, "content-length": str(len(data))})
        await self.body(data, more=False)

    def stands_still(self, longest: float) -> bool:
        """Tell whether the agent has taken nothing for longer than that many seconds."""
        return self._since is not None and self._now() - self._since > longest


class Passing:
    """One reply on its way. ``copy`` is what was passed on, as far as it is recorded.

    ``on_finished`` is called before the agent has the end of it: what it asks next is held against
    a budget that knows of this.
    """

    def __init__(
        self,
        answer: Answer,
        language: Language,
        collector: Collector,
        vault: Vault,
        on_finished: Callable[[], None],
    ) -> None:
        self._answer = answer
        self._language = language
        self._collector = collector
        self._vault = vault
        self._on_finished = on_finished
        self.ended = Ended.CUT
        self.content_type = answer.content_type.partition(";")[0].strip().lower()
        self._headers = {
            name: vault.clean_text(value)
            for name, value in answer.headers.items()
            if value.isascii() and value.isprintable()
        }
        self.copy = bytearray()
        self.copy_cut = False
        self.cost_nothing = answer.status >= _ERRORS.start

    async def run(self, out: Out, *, stream: bool) -> None:
        """Pass it on.

        Raises:
            RefusedError: it cannot be, and nothing has been passed on so far.
        """
        if self._answer.status == _OK and stream and self.content_type == _EVENTS:
            await self._events(out)
        elif self._answer.status == _OK:
            await self._object(out)
        else:
            await self._failure(out)

    async def _object(self, out: Out) -> None:
        data = self._vault.clean(await self._read(MAX_REPLY))
        if values_in(data) > MAX_REPLY_VALUES:
            raise self._unusable(Ended.TOO_LONG, _TOO_LONG)
        try:
            self._collector.whole(parse_reply(data))
        except BadEventError as error:
            why = "the provider's reply is no JSON object"
            raise self._unusable(Ended.MALFORMED, why) from error
        self._keep(data)
        self.ended = Ended.WHOLE
        self._on_finished()
        await out.whole(_OK, data, {"content-type": _JSON, **self._headers})

    async def _failure(self, out: Out) -> None:
        """Pass on what a provider says of a failure, in its own words where they are its own."""
        data = self._vault.clean(await self._read(MAX_ERROR))
        self._keep(data)
        self.ended = Ended.WHOLE
        why = f"the provider answered with HTTP {self._answer.status}"
        if self._answer.status not in _ERRORS:
            raise RefusedError(Refusal.UPSTREAM, why)
        try:
            parse_reply(data)
        except BadEventError as error:
            raise RefusedError(Refusal.UPSTREAM, why) from error
        headers = {"content-type": _JSON, **self._headers}
        await out.whole(self._answer.status, data, headers)

    async def _read(self, limit: int) -> bytes:
        try:
            return await read_reply(self._answer.chunks, limit)
        except TooLongError as error:
            raise self._unusable(Ended.TOO_LONG, _TOO_LONG) from error
        except BrokenOffError as error:
            raise self._unusable(Ended.CUT, "the provider broke off its reply") from error

    def _unusable(self, ended: Ended, why: str) -> RefusedError:
        self.ended = ended
        return RefusedError(Refusal.UPSTREAM, why)

    async def _events(self, out: Out) -> None:
        """Pass a stream on; what breaks off there breaks off here, as it would without us."""
        await out.start(_OK, {"content-type": _EVENTS, **self._headers})
        try:
            await self._each_chunk(out)
        except TooLongError:
            await self._end_with(out, Ended.TOO_LONG, _TOO_LONG)
        except BadEventError:
            await self._end_with(out, Ended.MALFORMED, _BAD_EVENT)
        except BrokenOffError:
            return
        else:
            self.ended = Ended.WHOLE if self._collector.finished else Ended.INCOMPLETE
            await out.body(b"", more=False)

    async def _each_chunk(self, out: Out) -> None:
        events, blotter = Events(), Blotter(self._vault)
        passed = 0
        async for chunk in self._answer.chunks:
            passed += len(chunk)
            if passed > MAX_REPLY:
                raise TooLongError
            data = blotter.feed(chunk)
            self._understand(events, data)
            if data:
                self._keep(data)
                if self._collector.finished:
                    self._on_finished()
                await out.body(data, more=True)
        if rest := blotter.rest():
            self._keep(rest)
            await out.body(rest, more=True)

    def _understand(self, events: Events, data: bytes) -> None:
        for event in events.feed(data):
            if event == DONE:
                self._collector.done()
            else:
                self._collector.event(parse_reply(event))

    async def _end_with(self, out: Out, ended: Ended, why: str) -> None:
        self.ended = ended
        form = self._language.errors[Refusal.UPSTREAM]
        event = self._language.error_event(form, why)
        self._keep(event)
        await out.body(event, more=False)

    def _keep(self, data: bytes) -> None:
        room = MAX_BODY - len(self.copy)
        self.copy += data[:room]
        self.copy_cut = self.copy_cut or len(data) > room
