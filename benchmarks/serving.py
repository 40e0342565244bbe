# SPDX-License-Identifier: Apache-2.0
"""Rows of `hutch serve`: `/run_code` on 1, 16 and 128 connections, beside the bare call.

Two other servers are there to compare: an echo, which is the same server and runs nothing, and one
that runs each program with a subprocess, as servers do that isolate nothing. Run as a program, this
module is one of them: `python serving.py echo|subprocess`.
"""

from __future__ import annotations

import asyncio
import json
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calls import Bench
    from table import Row

SOURCE = "print(1)"
OURS = [sys.executable, "-m", "hutch", "serve", "--port", "0"]


def request(code: str, **more: object) -> bytes:
    """To `/run_code`, which runs this program."""
    body = json.dumps({"code": code, "language": "python", **more}).encode()
    return (
        b"POST /run_code HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )


_REQUEST = request(SOURCE)


class Load:
    """Requests over so many connections at once, each sent when the one before it is answered."""

    def __init__(self, port: int, connections: int) -> None:
        self._sockets = [
            socket.create_connection(("127.0.0.1", port), 120) for _ in range(connections)
        ]

    def __call__(self, seconds: float) -> list[float]:
        """What each took. Raises RuntimeError for an answer other than 200."""
        over = time.perf_counter() + seconds
        more = iter(lambda: _REQUEST if time.perf_counter() < over else None, None)
        taken = []
        for _, one, answer in self.answers(more):
            taken.append(one)
            if not answer.startswith(b"HTTP/1.1 200 "):
                raise RuntimeError(answer.decode(errors="replace")[:300])
        return taken

    def answers(self, requests: Iterator[bytes]) -> Iterator[tuple[int, float, bytes]]:
        """(number of the request, seconds it took, answer) of each, as they are answered."""
        clock = time.perf_counter
        numbered = enumerate(requests)
        sent: dict[Any, tuple[int, float]] = {}
        read = dict.fromkeys(self._sockets, b"")

        def send(one: socket.socket) -> None:
            number, request = next(numbered, (-1, b""))
            if request:
                sent[one] = number, clock()
                one.sendall(request)

        with selectors.DefaultSelector() as selector:
            for one in self._sockets:
                selector.register(one, selectors.EVENT_READ)
                send(one)
            while sent:
                for key, _ in selector.select():
                    one: Any = key.fileobj
                    read[one] += one.recv(1 << 16)
                    if not _is_whole(read[one]):
                        continue
                    number, begun = sent.pop(one)
                    yield number, clock() - begun, read[one]
                    read[one] = b""
                    send(one)

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._sockets:
            one.close()


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    if not end:
        if not answer:
            raise RuntimeError("the server hung up")
        return False
    size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return len(body) >= size


@contextmanager
def serving(command: list[str]) -> Iterator[int]:
    """The port of a server, which says it in its first line."""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            line = server.stderr.readline()
            yield int(line.rpartition(":")[2])
        finally:
            server.terminate()


def rows(bench: Bench) -> Iterator[Row]:
    from table import RATE, Row

    import hutch
    from hutch.cli import measure

    echo, stand_in = ([sys.executable, __file__, name] for name in ("echo", "subprocess"))
    program = hutch.Program(SOURCE)
    with serving(OURS) as port, serving(echo) as echo_port, serving(stand_in) as other_port:
        for connections in (1, 16, 128):
            ports = {"echo": echo_port, "run_code": port, "subprocess": other_port}
            found = {name: measure.Times() for name in ports}
            bare = measure.Times()
            for turn in range(3):  # the first starts what is needed
                for name, one in ports.items():
                    with Load(one, connections) as load:  # idle ones are closed after 5 s
                        begin = time.perf_counter()
                        taken = load(bench.long if turn else 0.2)
                        if turn:
                            found[name].add(measure.Times(taken, time.perf_counter() - begin))
                if turn:
                    bare.add(measure.by_threads(lambda n: program.run(), connections, bench.long))
            rates = {name: times.rate for name, times in found.items()}
            note = f"echo {rates['echo']:,.0f}/s, a subprocess each {rates['subprocess']:,.0f}/s"
            more = {**{f"{name}_rate": rate for name, rate in rates.items()}, "bare": bare.rate}
            times = found["run_code"]
            if connections == 1:
                yield Row(
                    "serve-1",
                    "POST /run_code, one connection",
                    times.p50,
                    p99=times.p99,
                    floor=bare.p50,
                    floor_is="the bare call",
                    target="p50 ≤ 1.5 ms",
                    met=times.p50 <= 1.5e-3,
                    note=note,
                    more=more,
                )
                continue
            yield Row(
                f"serve-{connections}",
                f"POST /run_code, {connections} connections",
                times.rate,
                RATE,
                floor=bare.rate,
                floor_is=f"bare calls by {connections} threads",
                target="≥ 0.6 × that",
                met=times.rate >= 0.6 * bare.rate,
                takes_all=True,
                note=note,
                more={**more, "p50": times.p50, "p99": times.p99},
            )


ROWS = {"serve": rows}


def main(kind: str) -> None:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def answer(request: Request) -> JSONResponse:
        body = json.loads(await request.body())
        said, code = "1\n", 0
        if kind == "subprocess":
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", body["code"], stdout=asyncio.subprocess.PIPE
            )
            said, code = (await process.communicate())[0].decode(), process.returncode or 0
        result = {"status": "Finished", "return_code": code, "stdout": said, "stderr": ""}
        return JSONResponse({"status": "Success", "run_result": result})

    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(f"serving on 127.0.0.1:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
    app = Starlette(routes=[Route("/run_code", answer, methods=["POST"])])
    config = uvicorn.Config(app, log_level="error", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(sys.argv[1])
