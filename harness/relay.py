"""Join a port of the container's own loopback to a unix socket, for a program that knows only TCP.

``relay.py PORT SOCKET [COMMAND...]``: with a command, run it and end with its exit code; without
one, serve until stopped. Nothing is read of what goes through. Each direction ends by itself, so
that a side which has said all it has to say can still hear the answer.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable

_PIECE = 64 * 1024
_BACKLOG = 128
_USAGE = 64
_UNSTARTED = 127
_SIGNALLED = 128
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes one way until they end, and then say so on the other side."""
    while piece := await reader.read(_PIECE):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def joined_to(path: str) -> Handler:
    """Make the handler of a connection, which opens one of its own to ``path``."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_unix_connection(path)
        except OSError:
            writer.close()  # the agent sees a server that hangs up, which is what there is
            return
        ways = (pump(reader, there_writer), pump(there_reader, writer))
        tasks = [asyncio.ensure_future(way) for way in ways]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            task.cancel()  # of two that have ended, nothing; of one whose other end broke, the rest
        await asyncio.gather(*tasks, return_exceptions=True)
        for end in (writer, there_writer):
            end.close()

    return handle


async def run(command: list[str]) -> int:
    """Run a command to its end; signals that ask us to stop ask it, however early they come."""
    wishes: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in _PASSED_ON:
        loop.add_signal_handler(number, wishes.put_nowait, number)
    try:
        child = await asyncio.create_subprocess_exec(*command)
    except OSError as error:
        print(f"relay: {command[0]}: {error.strerror}", file=sys.stderr)
        return _UNSTARTED
    passing_on = asyncio.ensure_future(pass_on(wishes, child.pid))
    code = await child.wait()
    passing_on.cancel()
    return code if code >= 0 else _SIGNALLED - code


async def pass_on(wishes: "asyncio.Queue[signal.Signals]", pid: int) -> None:
    """Send every signal that comes to a process."""
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, await wishes.get())


async def serve(port: int, path: str, command: list[str]) -> int:
    """Listen, then run the command, or wait."""
    server = await asyncio.start_server(
        joined_to(path), "127.0.0.1", port, backlog=_BACKLOG, limit=_PIECE
    )
    async with server:
        if command:
            return await run(command)
        await server.serve_forever()
    return 0


def main() -> int:
    """Read the command line and relay."""
    if len(sys.argv) < 3 or not sys.argv[1].isdigit():  # noqa: PLR2004
        print("usage: relay.py PORT SOCKET [COMMAND...]", file=sys.stderr)
        return _USAGE
    try:
        return asyncio.run(serve(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
    except OSError as error:
        print(f"relay: port {sys.argv[1]}: {error.strerror}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # connections that are open end here, without a word about it
