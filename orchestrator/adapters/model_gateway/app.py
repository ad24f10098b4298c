"""The gateway as an ASGI application: one request in, one reply out, one line of record."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Send
from starlette.types import Scope as Connection

from orchestrator.adapters.model_gateway.language import Collector, Language
from orchestrator.adapters.model_gateway.languages import Route, catalogue, find, guess
from orchestrator.adapters.model_gateway.meter import Meter
from orchestrator.adapters.model_gateway.pace import Pace
from orchestrator.adapters.model_gateway.passing import Out, Passing
from orchestrator.adapters.model_gateway.policy import Passed, Policy
from orchestrator.adapters.model_gateway.record import Recorder, Wire
from orchestrator.adapters.model_gateway.secrets import Vault
from orchestrator.adapters.model_gateway.shape import RefusedError, Scope
from orchestrator.adapters.model_gateway.source import Ask, Source
from orchestrator.adapters.model_gateway.wire import read_request
from orchestrator.domain.model import Ended, Exchange, Refusal, Reply, ToolCall, Usage
from orchestrator.errors import StorageFullError
from orchestrator.ports import Clock

MAX_AT_ONCE = 128
"""Requests of one attempt in flight; what is beyond is told to come again."""
MAX_BYTES_AT_ONCE = 128 * 1024**2
MAX_REFUSALS = 2_000
"""More of an attempt's refused requests than this are told to the agent alone."""
STANDSTILL = 120.0
"""Seconds after which an agent that takes nothing of its reply has left: others want its slot."""
_LOOK_EVERY = 10.0
_ORDINARY = 64 * 1024
"""A request is paced by its size as well: a large one is work for this process."""
_NS = 1_000_000_000
_OK = 200
_JSON: Mapping[str, str] = {"content-type": "application/json"}
_HEALTH = {("HEAD", "/"), ("GET", "/")}
_COME_AGAIN = 1


@dataclass
class _Turn:
    """One request on its way, and what will be recorded of it."""

    number: int
    request: Request
    path: str
    """Of the request line, whatever the agent says in ``Host``."""
    language: Language
    arrived_ns: int
    scope: Scope
    out: Out
    route: Route | None = None
    passed: Passed | None = None
    collector: Collector | None = None
    passing: Passing | None = None
    refusal: RefusedError | None = None
    left: bool = False
    tries: int = 0
    note: str = ""
    raw: int = 0
    usage: Usage = field(default_factory=Usage)


class GatewayApp:
    """Serves one attempt. Everything here runs on the gateway's own loop."""

    def __init__(
        self,
        policy: Policy,
        source: Source,
        meter: Meter,
        recorder: Recorder,
        vault: Vault,
        clock: Clock,
        on_fault: Callable[[Exception], None],
    ) -> None:
        self._policy = policy
        self._session = policy.session
        self._source = source
        self._meter = meter
        self._recorder = recorder
        self._vault = vault
        self._clock = clock
        self._on_fault = on_fault
        self.arrived = 0
        """Requests, whatever became of them."""
        self._at_once = 0
        self._bytes = 0
        self._full = False
        self._pace = Pace()
        self._told = 0

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Serve one request of an ASGI server."""
        if scope["type"] != "http":
            return
        self.arrived += 1
        request = Request(scope, receive)
        turn = _Turn(
            number=self.arrived,
            request=request,
            path=scope["path"],
            language=guess(scope["path"], self._session.choice.dialects),
            arrived_ns=self._clock.boottime_ns(),
            scope=Scope(self._session.tools, self._policy.own_ids),
            out=Out(send),
        )
        self._at_once += 1
        try:
            await self._pace.turn()
            await self._serve(turn)
        except Exception as error:
            self._on_fault(error)
            raise
        finally:
            self._at_once -= 1
            self._bytes -= turn.raw

    async def _serve(self, turn: _Turn) -> None:
        request = turn.request
        if (request.method, turn.path) in _HEALTH:
            await turn.out.whole(_OK, b"{}", _JSON)
            return
        try:
            if request.method == "GET":
                listed = catalogue(turn.path, self._policy.models)
                await turn.out.whole(_OK, json.dumps(listed).encode(), _JSON)
                return
            await self._generate(turn)
        except RefusedError as error:
            turn.refusal = error
            await _refuse(turn, error)
        except ClientDisconnect:
            turn.left = True
        finally:
            self._settle(turn)

    async def _generate(self, turn: _Turn) -> None:
        """Take a request in, and see it through while the agent waits for it."""
        if self._full:
            raise RefusedError(Refusal.UPSTREAM, "the host cannot record exchanges any more")
        request = turn.request
        turn.route = find(request.method, turn.path, self._session.choice.dialects)
        turn.language = turn.route.language
        if self._at_once > MAX_AT_ONCE:
            raise _busy(f"more than {MAX_AT_ONCE} requests at once")
        raw = await read_request(self._counted(turn), request.headers.get("content-encoding", ""))
        self._take(turn, len(raw) - turn.raw)  # what was packed
        await self._pace.turn(len(raw) / _ORDINARY)
        turn.passed = self._policy.hold(
            turn.route, raw, dict(request.query_params), dict(request.headers), turn.scope
        )
        if turn.route.endpoint.verb.spends:
            self._meter.admit(turn.number)
        turn.collector = turn.language.collector()
        answering = asyncio.create_task(self._answer(turn, turn.passed))
        leaving = asyncio.create_task(_left(request.receive))
        ends = (answering, leaving)
        try:
            while not (answering.done() or leaving.done() or turn.out.stands_still(STANDSTILL)):
                await asyncio.wait(ends, timeout=_LOOK_EVERY, return_when=asyncio.FIRST_COMPLETED)
        finally:
            turn.left = not answering.done()
            leaving.cancel()
            answering.cancel()
            results = await asyncio.gather(*ends, return_exceptions=True)
        if isinstance(results[0], Exception):
            raise results[0]

    async def _answer(self, turn: _Turn, passed: Passed) -> None:
        assert turn.route is not None and turn.collector is not None  # noqa: S101, PT018
        ask = Ask(
            dialect=turn.language.dialect,
            model=passed.model,
            endpoint=turn.route.endpoint,
            path=turn.path,
            suffix=passed.suffix,
            query=passed.query,
            headers=passed.headers,
            body=passed.sent,
            stream=passed.stream,
            fingerprint=passed.fingerprint,
        )
        async with self._source.ask(ask) as answer:
            turn.tries, turn.note = answer.tries, answer.note
            turn.passing = Passing(
                answer, turn.language, turn.collector, self._vault, lambda: self._charge(turn)
            )
            await turn.passing.run(turn.out, stream=passed.stream)

    async def _counted(self, turn: _Turn) -> AsyncIterator[bytes]:
        """Read the body, and hold all bodies of the attempt to a common limit."""
        async for chunk in turn.request.stream():
            self._take(turn, len(chunk))
            yield chunk

    def _take(self, turn: _Turn, size: int) -> None:
        turn.raw += size
        self._bytes += size
        if self._bytes > MAX_BYTES_AT_ONCE:
            raise _busy(f"more than {MAX_BYTES_AT_ONCE} bytes of requests at once")

    def _settle(self, turn: _Turn) -> None:
        """Count and record what a request came to."""
        self._charge(turn)
        self._meter.close(turn.number)
        passed, passing = turn.passed, turn.passing
        error = turn.refusal
        ended = passing.ended if passing is not None else Ended.WHOLE
        exchange = Exchange(
            number=turn.number,
            dialect=turn.language.dialect,
            path=self._vault.clean_text(turn.path[:1000]),
            model=passed.model if passed is not None else "",
            status=turn.out.status,
            seconds=(self._clock.boottime_ns() - turn.arrived_ns) / _NS,
            usage=turn.usage,
            reply=self._cleaned(turn.collector),
            refusal=error.kind if error is not None else None,
            message=self._vault.clean_text(error.message) if error is not None else "",
            ended=Ended.LEFT if turn.left else ended,
            tries=turn.tries,
            dropped=tuple(map(self._vault.clean_text, turn.scope.dropped)),
            note=turn.note,
        )
        self._keep(turn, exchange)

    def _charge(self, turn: _Turn) -> None:
        """Charge what the provider counted, or an estimate where it did not.

        An agent that leaves before there is an answer pays for its question: the provider may be
        at work on it.
        """
        passed, passing, collector = turn.passed, turn.passing, turn.collector
        if turn.route is None or passed is None or collector is None:
            return
        self._policy.learn(collector.ids)
        if turn.route.endpoint.verb.spends:
            free = not turn.left if passing is None else passing.cost_nothing
            nothing = Usage() if free else collector.estimate(len(passed.sent))
            turn.usage = self._meter.charge(turn.number, collector.usage or nothing, passed.model)

    def _cleaned(self, collector: Collector | None) -> Reply:
        if collector is None:
            return Reply()
        reply, clean = collector.reply, self._vault.clean_text
        calls = tuple(ToolCall(clean(call.name), clean(call.arguments)) for call in reply.calls)
        return replace(reply, text=clean(reply.text), thought=clean(reply.thought), calls=calls)

    def _keep(self, turn: _Turn, exchange: Exchange) -> None:
        passed, passing = turn.passed, turn.passing
        if exchange.refusal is not None and passing is None:
            self._told += 1
            if self._told > MAX_REFUSALS:
                return
        wire = Wire(
            method=turn.request.method,
            path=turn.path[:1000],
            request=json.loads(passed.sent) if passed is not None else {},
            fingerprint=passed.fingerprint if passed is not None else None,
            content_type=passing.content_type if passing is not None else "",
            body=bytes(passing.copy) if passing is not None else b"",
            body_cut=passing is not None and passing.copy_cut,
        )
        try:
            self._recorder.add(exchange, wire)
            self._session.on_exchange(exchange)
        except StorageFullError as error:
            self._full = True
            self._on_fault(error)


def _busy(what: str) -> RefusedError:
    return RefusedError(Refusal.BUSY, f"{what}; come again", retry_after=_COME_AGAIN)


async def _left(receive: Receive) -> None:
    """Return when the agent has hung up."""
    message: Message = {"type": ""}
    while message["type"] != "http.disconnect":
        message = await receive()


async def _refuse(turn: _Turn, error: RefusedError) -> None:
    """Tell the agent, in its dialect, why it gets no reply."""
    if turn.out.status:
        return
    form = turn.language.errors[error.kind]
    body = json.dumps(turn.language.error(form, error.message)).encode()
    again = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    await turn.out.whole(form.status, body, {**_JSON, **again})
