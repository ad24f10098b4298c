"""A server for one agent, who may want to do harm with it.

Connections are taken in one by one and only while there is room, so that an agent cannot use up
this process's descriptors: what is beyond waits in the kernel, or is told there that nobody is
listening.
"""

import asyncio
import socket
import threading
from collections.abc import Callable

import uvicorn
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from orchestrator.adapters.model_gateway.pace import Pace

MAX_CONNECTIONS = 256
BACKLOG = 256
_KEEP_ALIVE = 24 * 3600
_GRACE = 1


class _Connection(H11Protocol):
    """A connection that says when it has gone."""

    on_lost: Callable[[], None]

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.on_lost()


class AgentServer(uvicorn.Server):
    """Serves an application on a listening socket; ``begun`` is set once it does."""

    def __init__(
        self, app: Callable[..., object], listener: socket.socket, begun: threading.Event
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                log_level="critical",
                access_log=False,
                lifespan="off",
                interface="asgi3",
                http=_Connection,
                ws="none",
                loop="asyncio",
                timeout_keep_alive=_KEEP_ALIVE,
                timeout_graceful_shutdown=_GRACE,
                server_header=False,
                date_header=False,
                proxy_headers=False,
            )
        )
        self._listener = listener
        self._begun = begun
        self._room = asyncio.Semaphore(MAX_CONNECTIONS)
        self._accepting: asyncio.Task[None] | None = None

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        self.servers = []
        self._accepting = asyncio.create_task(self._accept())
        self._accepting.add_done_callback(self._stop)
        self.started = True
        self._begun.set()

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait((self._accepting,))
        await super().shutdown(sockets)

    def accept_fault(self) -> BaseException | None:
        """Say what ended the taking in of connections, if it was not the end of the server."""
        task = self._accepting
        return None if task is None or not task.done() or task.cancelled() else task.exception()

    async def _accept(self) -> None:
        loop, pace = asyncio.get_running_loop(), Pace()
        while True:
            await self._room.acquire()
            await pace.turn()
            connection, _ = await loop.sock_accept(self._listener)
            await loop.connect_accepted_socket(self._protocol, connection)

    def _protocol(self) -> _Connection:
        protocol = _Connection(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        protocol.on_lost = self._room.release
        return protocol

    def _stop(self, _task: object) -> None:
        self.should_exit = True
