# SPDX-License-Identifier: Apache-2.0
"""Acts as agent and client of one real worker, started with `podman run`.

`HUTCH_TEST_PODMAN`: the command that runs Podman (default `podman`); `HUTCH_TEST_RUNTIME`: a
directory with hutch-warden, worker/ and cloudpickle/; `HUTCH_TEST_IMAGE`: the base image;
`HUTCH_TEST_ENVIRONMENT`: a directory to mount at /opt/env (default: one small module).
Speaks wire/cell_frame.h. One thread.
"""

from __future__ import annotations

import array
import json
import marshal
import os
import pickle
import select
import shlex
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

HEADER = struct.Struct("<HBBIQQQ")
USAGE = struct.Struct("<QQQQQQII")
REPORT = struct.Struct("<iiIIQQQQQII")
MAGIC, VERSION = 0x4348, 3
CALL, STARTED, RESULT, RAISED, UNENCODABLE, NEED, MEMFD, REFUSED, TOO_LARGE, LOAD, PART = range(
    1, 12
)
MISDIRECTED = 12
LOADING = 1  # of an ARM
NO_IDENTITY = bytes(32)
MAKE_SLOT, MAKE_CELL, ARM, KILL, RETIRE, CONFIGURE, END_SLOT = range(32, 39)
HELLO, ZYGOTE_READY, SLOT_READY, CELL_READY, CELL_EXIT, FAILED, ZYGOTE_DIED = range(64, 71)
SLOT_GONE = 71

IMAGE = os.environ.get("HUTCH_TEST_IMAGE", "localhost/hutch-base:dev")
PODMAN = shlex.split(os.environ.get("HUTCH_TEST_PODMAN", "podman"))
RUNTIME = os.environ.get("HUTCH_TEST_RUNTIME", "")
ENVIRONMENT = os.environ.get("HUTCH_TEST_ENVIRONMENT", "")


@dataclass
class Frame:
    kind: int
    a: int = 0
    id: int = 0
    b: int = 0
    c: int = 0
    payload: bytes = b""


@dataclass
class Exit:
    """CellReport."""

    exit_code: int
    signal: int
    limit: int
    end: int  # 0: of itself, 1: killed, 2: lost
    wall_us: int
    cpu_us: int
    cpu_wait_us: int
    peak_kb: int
    memory_limit_kb: int
    pids_peak: int
    disk_full: int


@dataclass
class Reply:
    kind: int
    value: Any = None
    usage: dict[str, int] = field(default_factory=dict)
    output: str = ""
    errors: str = ""
    raw: bytes = b""


def send(sock: socket.socket, frame: Frame, descriptors: list[int] | None = None) -> None:
    data = HEADER.pack(MAGIC, VERSION, frame.kind, frame.a, frame.id, frame.b, frame.c)
    rights = (
        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        if descriptors
        else []
    )
    sock.sendmsg([data, frame.payload], rights)


def readable(descriptor: int, timeout: float) -> bool:
    """select() takes no descriptor above 1023."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(int(timeout * 1000)))


def receive(sock: socket.socket, timeout: float = 20) -> Frame | None:
    """None: the other side is gone."""
    if not readable(sock.fileno(), timeout):
        raise TimeoutError("no frame came")
    try:
        data = sock.recv(128 * 1024)
    except ConnectionResetError:
        return None
    if not data:
        return None
    magic, version, kind, a, id_, b, c = HEADER.unpack_from(data)
    assert (magic, version) == (MAGIC, VERSION)
    return Frame(kind, a, id_, b, c, data[HEADER.size :])


class Worker:
    """One worker container; a context manager that removes it."""

    def __init__(self, **settings: Any) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="hutch-worker-"))
        os.chmod(self.directory, 0o777)
        self.name = self.directory.name
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(self.directory / "warden.sock"))
        os.chmod(self.directory / "warden.sock", 0o666)
        self.listener.listen()
        self.cells = 0
        self.warden = 0  # its pid on the host, once asked for
        self.inbox: list[Frame] = []
        self.slots: set[int] = set()
        self.exits: dict[int, Exit] = {}
        self.uid = settings.pop("uid", 1000)
        self.limits = {
            "MEMORY_KB": 1 << 20,
            "DISK_KB": 64 << 10,
            "PIDS": 64,
            "CPUS": 1,
            "NOFILE": 1024,
        }
        files: dict[str, bytes] = settings.pop("files", {})
        self.limits.update(settings)
        for name, data in files.items():
            (self.directory / name).parent.mkdir(parents=True, exist_ok=True)
            (self.directory / name).write_bytes(data)
        self.process = subprocess.Popen(
            self.command(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.sockets: list[socket.socket] = [self.listener]  # closed with the worker
        self.agent = self.accept()
        config = "".join(f"HUTCH_{key}={value}\0" for key, value in self.limits.items())
        self.tell(Frame(CONFIGURE, payload=config.encode()))

    def accept(self) -> socket.socket:
        self.listener.settimeout(30)
        while True:
            try:
                connection, _ = self.listener.accept()
                self.sockets.append(connection)
                break
            except TimeoutError:
                raise RuntimeError(f"the worker did not come: {self.stop()}") from None
        hello = receive(connection)
        assert (
            hello is not None
            and hello.kind == HELLO
            and hello.a == VERSION
            and hello.payload == b"t" * 32
        )
        return connection

    def command(self) -> list[str]:
        env = {
            "SOCKET": "/run/hutch/warden.sock",
            "TOKEN": "t" * 32,
            "PYTHON": "/opt/python/bin/python3",
        }
        command = [
            *PODMAN,
            "run",
            "--name",
            self.name,
            "--user",
            f"{self.uid}:{self.uid}",
            "--cap-drop",
            "all",
        ]
        command += ["--security-opt", "no-new-privileges", "--security-opt", "unmask=ALL"]
        command += ["--security-opt", f"seccomp={RUNTIME}/seccomp-worker.json"]
        command += [
            "--read-only",
            "--read-only-tmpfs=false",
            "--network",
            "none",
            "--pid",
            "private",
            "--ipc",
            "private",
        ]
        command += [
            "--uts",
            "private",
            "--no-hosts",
            "--log-driver",
            "none",
            "--ulimit",
            "core=0:0",
        ]
        command += ["--tmpfs", "/tmp:rw,size=16m,mode=1777,nosuid,nodev", "--pull", "never"]
        command += ["-v", f"{RUNTIME}:/opt/hutch:ro", "-v", f"{self.directory}:/run/hutch:rw"]
        if (self.directory / "modules").is_dir():
            command += ["-v", f"{self.directory}/modules:/opt/modules:ro"]
        command += ["-v", f"{ENVIRONMENT or self.small_environment()}:/opt/env:ro"]
        for key, value in env.items():
            command += ["-e", f"HUTCH_{key}={value}"]
        return [*command, "--entrypoint", "/opt/hutch/hutch-warden", IMAGE]

    def small_environment(self) -> Path:
        tree = self.directory / "environment"
        tree.mkdir(exist_ok=True)
        (tree / "small.py").touch()
        return tree

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> str:
        subprocess.run(
            [*PODMAN, "rm", "-f", "-t", "0", self.name],
            capture_output=True,
            timeout=60,
            check=False,
        )
        said = self.process.communicate(timeout=30)[0].decode(errors="replace")
        for sock in self.sockets:
            sock.close()
        shutil.rmtree(self.directory, ignore_errors=True)
        return said

    def process_ids(self) -> dict[str, list[int]]:
        """This worker's processes as the host sees them: children of the warden."""
        asked = subprocess.run(
            [*PODMAN, "inspect", "-f", "{{.State.Pid}}", self.name], capture_output=True, text=True
        )
        warden = int(asked.stdout)
        # The zygote is the oldest child; PID 1 of a cell is the first of another PID namespace.
        own = [pid for pid in children(warden) if len(nspid(pid)) == len(nspid(warden))]
        return {"warden": [warden], "zygote": own[:1], "slots": own[1:]}

    def user_process(self) -> int:
        """The process that runs the call, as the host sees it; of the one cell that there is."""
        if not self.warden:
            self.warden = self.process_ids()["warden"][0]
        own = len(nspid(self.warden))
        [first] = [pid for pid in children(self.warden) if len(nspid(pid)) > own]
        [user] = children(first)
        return user

    def tell(self, frame: Frame, descriptors: list[int] | None = None) -> None:
        send(self.agent, frame, descriptors)

    def expect(self, *kinds: int, id_: int | None = None, timeout: float = 20) -> Frame:
        """The next frame of these kinds (about that cell); keeps others for later."""
        end = time.monotonic() + timeout
        while True:
            for i, frame in enumerate(self.inbox):
                if frame.kind in kinds and (id_ is None or frame.id == id_):
                    return self.inbox.pop(i)
            frame_or_none = receive(self.agent, max(0.0, end - time.monotonic()))
            if frame_or_none is None:
                raise ConnectionError("the warden is gone")
            self.inbox.append(frame_or_none)

    def ready(self) -> dict[str, Any]:
        frame = self.expect(ZYGOTE_READY, ZYGOTE_DIED, timeout=60)
        assert frame.kind == ZYGOTE_READY, frame
        notes: dict[str, Any] = json.loads(frame.payload)
        self.notes = notes
        return notes

    def slot(self, number: int = 0) -> int:
        self.tell(Frame(MAKE_SLOT, a=number))
        frame = self.expect(SLOT_READY, FAILED)
        assert frame.kind == SLOT_READY, frame
        self.slots.add(number)
        return number

    def cell(self, slot: int = 0) -> Cell:
        if slot not in self.slots:
            self.slot(slot)
        return Cell(self, slot)


class Cell:
    def __init__(self, worker: Worker, slot: int) -> None:
        self.worker = worker
        worker.cells += 1
        self.id = worker.cells
        self.gone = False
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        worker.sockets.append(self.socket)
        self.out, out = os.pipe()
        self.err, err = os.pipe()
        worker.tell(Frame(MAKE_CELL, a=slot, id=self.id), [theirs.fileno(), out, err])
        theirs.close()
        os.close(out)
        os.close(err)
        self.made = worker.expect(CELL_READY, FAILED, id_=self.id)
        assert self.made.kind == CELL_READY, self.made

    def arm(self, wall_ms: int = 0, cpu_ms: int = 0, loading: bool = False) -> None:
        self.worker.tell(Frame(ARM, a=LOADING * loading, id=self.id, b=wall_ms, c=cpu_ms))

    def send_call(
        self,
        payload: bytes,
        meta: dict[str, Any],
        args: tuple[Any, ...] = (),
        kind: int = CALL,
        identity: bytes = NO_IDENTITY,
        mark: bytes = b"",
        cpu: int = -1,
        given: dict[str, Any] | None = None,
        marshalled: Any = None,
        **kwargs: Any,
    ) -> None:
        """`given`: arguments by name, as `kwargs` are; `mark`: lets the cell serve the call in C,
        such as b"P"; `cpu`: on which the caller waits; `marshalled`: in place of all arguments,
        sent by marshal."""
        buffers: list[pickle.PickleBuffer] = []
        packed = pickle.dumps(
            (args, {**kwargs, **(given or {})}), 5, buffer_callback=buffers.append
        )
        if marshalled is not None:
            packed = marshal.dumps(marshalled, 2)
        joined, places = bytearray(), b""
        for buffer in buffers:
            joined += b"\0" * (-len(joined) % 4096)
            places += struct.pack("<3Q", 0, len(joined), len(buffer.raw()))
            joined += buffer.raw()
        sections = [
            mark + pickle.dumps(meta, 5),
            payload,
            packed,
            places,
        ]
        descriptors, lengths, inline = [], [], []
        total = sum(map(len, sections))
        for section in sections:
            if total > 60_000 and len(section) > 10_000:
                descriptors.append(make_memfd(section))
                lengths.append(0xFFFFFFFF)
            else:
                lengths.append(len(section))
                inline.append(section)
        if buffers:
            descriptors.append(make_memfd(bytes(joined)))
        send(
            self.socket,
            Frame(
                kind,
                a=4,
                id=self.id,
                c=cpu + 1,
                payload=identity + struct.pack("<4I", *lengths) + b"".join(inline),
            ),
            descriptors,
        )
        for fd in descriptors:
            os.close(fd)

    def reply(self, timeout: float = 20) -> Reply | None:
        """None: the cell is gone without one."""
        parts = b""
        while True:
            frame = receive(self.socket, timeout)
            if frame is None:
                return None
            if frame.kind == STARTED:
                continue
            if frame.kind == PART:
                parts += frame.payload
                assert len(parts) <= frame.c
                continue
            if frame.kind == NEED:
                memfd = os.memfd_create("result", os.MFD_ALLOW_SEALING)
                os.ftruncate(memfd, frame.b)
                send(self.socket, Frame(MEMFD, id=frame.id), [memfd])
                continue
            usage = dict(
                zip(
                    ("load", "wall", "cpu", "peak", "encode", "cpu_wait", "faults", "limit"),
                    USAGE.unpack_from(frame.payload),
                )
            )
            body = frame.payload[USAGE.size :]
            if frame.a == 2:
                body = parts
                assert len(body) == frame.c
            if frame.a == 1:
                body = os.pread(memfd, frame.c, 0)
                os.close(memfd)
            value = decode(body[: frame.b]) if body else None
            return Reply(frame.kind, value, usage, drain(self.out), drain(self.err), body)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Reply | None:
        import cloudpickle  # type: ignore[import-not-found,import-untyped,unused-ignore]

        code = cloudpickle.dumps(function, 5)
        self.send_call(code, {"mode": "function"}, args, mark=b"P", **kwargs)
        return self.reply()

    def program(self, source: str, **meta: Any) -> Reply | None:
        given: dict[str, Any] = {
            name: meta.pop(name) for name in ("args", "stdin", "files") if name in meta
        }
        self.send_call(source.encode(), {"mode": "program", **meta}, given=given)
        return self.reply()

    def exit(self, timeout: float = 20) -> Exit:
        frame = self.worker.expect(CELL_EXIT, id_=self.id, timeout=timeout)
        for fd in (self.out, self.err):
            os.close(fd)
        self.socket.close()
        return Exit(*REPORT.unpack(frame.payload))

    def kill(self) -> Exit:
        self.worker.tell(Frame(KILL, id=self.id))
        return self.exit()


def children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def nspid(pid: int) -> list[str]:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(line for line in status.splitlines() if line.startswith("NSpid")).split()[1:]


def make_memfd(data: bytes) -> int:
    fd = os.memfd_create("section", os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    return fd


def drain(fd: int) -> str:
    data = b""
    while readable(fd, 0):
        chunk = os.read(fd, 65536)
        if not chunk:
            break
        data += chunk
    return data.decode(errors="replace")


def decode(body: bytes) -> Any:
    """Enough of bindings/decode.h for these tests: plain MessagePack, marks left as they are."""
    import msgpack  # type: ignore[import-not-found,import-untyped,unused-ignore]

    assert body[:2] == b"\xc1\x01", body[:20]
    return msgpack.unpackb(body[2:], strict_map_key=False)
