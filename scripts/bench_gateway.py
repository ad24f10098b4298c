"""What the model gateway adds to a stream: time per token, and memory for many streams at once.

Tokens come from a provider of this script's own, each with the moment it was sent; the same stream
is read straight from there and through the gateway's socket. Printed, never asserted.

usage: bench_gateway.py [STREAMS [TOKENS]]
"""

import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from orchestrator.adapters.model_gateway.gateway import HostModelGateway
from orchestrator.adapters.system_clock import SystemClock
from orchestrator.domain.model import Provider
from orchestrator.domain.task import Budget
from orchestrator.ports.models import GatewaySession

PAUSE = 0.25
"""Between two tokens of a stream; streams begin at any moment, so that what is measured is the way
and not a queue."""
BODY = {"model": "bench", "stream": True, "messages": [{"role": "user", "content": "go"}]}
CHUNK = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":"%d"},"finish_reason":null}]}\n\n'
)
LAST = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"bench","choices":[],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\ndata: [DONE]\n\n'
)


async def provide(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tokens: int) -> None:
    """Answer one request with a stream of moments."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length")
    )
    await reader.readexactly(length)
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
    writer.write(b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n")
    await asyncio.sleep(PAUSE * random.random())  # noqa: S311 - no secret
    for _ in range(tokens):
        piece = CHUNK % time.perf_counter_ns()
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await writer.drain()
        await asyncio.sleep(PAUSE)
    writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(LAST), LAST))
    await writer.drain()
    writer.close()


async def serve_provider(tokens: int) -> None:
    """Serve as the provider, on a port that is printed first."""
    server = await asyncio.start_server(
        lambda reader, writer: provide(reader, writer, tokens), "127.0.0.1", 0, backlog=512
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def read_stream(http: httpx.AsyncClient) -> list[int]:
    """Read one stream; return how long each token took, in nanoseconds."""
    took = []
    async with http.stream("POST", "/v1/chat/completions", json=BODY) as reply:
        async for piece in reply.aiter_raw():
            arrived = time.perf_counter_ns()
            marks = piece.split(b'"content":"')[1:]
            took += [arrived - int(mark.partition(b'"')[0]) for mark in marks]
    return took


async def read_streams(where: str, streams: int) -> None:
    """Read streams at once, as agents would; print the median time of a token in ms."""
    limits = httpx.Limits(max_connections=None)
    socket = None if where.startswith("http:") else where
    base = "http://orch" if socket else where
    transport = httpx.AsyncHTTPTransport(uds=socket, limits=limits, verify=False)
    async with httpx.AsyncClient(transport=transport, base_url=base, timeout=300) as http:
        took = await asyncio.gather(*(read_stream(http) for _ in range(streams)))
    print(statistics.median(each for stream in took for each in stream) / 1e6)


def memory() -> float:
    """Return the resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024**2


def child(*arguments: str) -> subprocess.Popen[str]:
    """Start a part of this script in a process of its own."""
    command = [sys.executable, __file__, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def read_in_child(where: str, streams: int) -> tuple[float, float, float]:
    """Return the median in ms, and by how many MiB and CPU seconds this process grew meanwhile."""
    before, cpu, highest = memory(), time.process_time(), memory()
    reading = child("read", where, str(streams))
    while reading.poll() is None:
        time.sleep(0.05)
        highest = max(highest, memory())
    assert reading.stdout is not None  # noqa: S101
    return float(reading.stdout.read()), highest - before, time.process_time() - cpu


def main(streams: int, tokens: int) -> None:
    """Measure and print."""
    providing = child("provide", str(tokens))
    assert providing.stdout is not None  # noqa: S101
    upstream = f"http://127.0.0.1:{providing.stdout.readline().strip()}"
    provider = Provider.model_validate(
        {"base_url": f"{upstream}/v1", "dialects": ["chat"], "auth": "none", "concurrency": 1024}
    )
    with tempfile.TemporaryDirectory() as folder:
        host = HostModelGateway({"bench": provider}, Path(folder), SystemClock(), {}.get)
        session = GatewaySession(
            run_id="bench",
            choice=host.choose("bench/bench", "", Budget()),
            record=Path(folder, "exchanges.jsonl"),
            owner=(os.getuid(), os.getgid()),
        )
        gateway = host.open(session)
        try:
            for count in (1, streams):
                straight, _, _ = read_in_child(upstream, count)
                through, grown, cpu = read_in_child(str(gateway.socket), count)
                print(
                    f"{count:>4} streams of {tokens} tokens: a token takes {straight:.3f} ms"
                    f" straight, {through:.3f} ms through the gateway, at the median;"
                    f" {grown:+.1f} MiB, {1000 * cpu / count / tokens:.3f} ms of CPU a token"
                )
            print(f"{gateway.usage().requests} requests; failed: {gateway.failed()}")
        finally:
            gateway.close()
            providing.kill()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["provide", tokens]:
            asyncio.run(serve_provider(int(tokens)))
        case ["read", where, streams]:
            asyncio.run(read_streams(where, int(streams)))
        case [streams, tokens]:
            main(int(streams), int(tokens))
        case _:
            main(100, 200)
