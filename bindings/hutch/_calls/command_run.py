# SPDX-License-Identifier: Apache-2.0
"""One command of a session that runs beside its calls: the channel and the pipes that it has for
itself, its time limit, and what became of it.

All that comes there is from the sandbox: a frame may say anything, but says it of this command
alone, for no other has this channel.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hutch import _core
from hutch._calls.asking import Asking
from hutch._calls.dialogue import Feed
from hutch._calls.outcomes import conclude, limited, raised
from hutch._calls.target import Target
from hutch._outcome import Outcome, Usage

_READ = 1 << 16  # bytes at once
_MOST_READ = 1 << 20  # bytes of a stream in one step: a pipe has no more
_MOST_FRAME = (64 << 10) + 64
_MOST_FRAMES = 8  # of one command
_END_SEC = 10.0  # to kill it, and say so: sixteen at once take seconds on a busy machine
_SETTLE_SEC = 10.0  # until what a bash leaves is the session's
_SETTLE_BESIDE_SEC = 1.0  # the same, where code runs, which may keep the interpreter to itself
_LOOK_SEC = 0.01  # after which a process that has not begun it is told to look; then twice that
_MOST_LOOK_SEC = 0.5
_TAKE_SEC = 0.5  # for an interpreter that runs no call to take what lies before a command
_USE_SEC = 1.0  # so often the agent hears that the session is in use
# What an exception may be, as wire/cell_frame.h numbers them: time is measured, here or there.
_LIMITS = {3: "memory", 4: "pids", 5: "disk"}
_EXITED, _CANCELLED, _CPU_TIME, _NO_THREAD, _NO_SPACE, _NO_FILES = range(6)  # as there: CommandEnd
# What a program that has met the limit of the disk says, as the C library has it for ENOSPC.
_DISK_IS_FULL = "No space left on device"
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

Pipe = tuple[int, int]  # a stream (0 is stdout, 1 stderr), and the descriptor to read it from


class _Payload(bytes):
    body_size: int


@dataclass
class Reply:
    """In the place of a CallResult."""

    status: str
    limit: str = ""
    payload: _Payload | None = None
    usage: Any = None
    result_size: int = 0
    detail: str = ""


class CommandRun:
    """`how`: "" while it runs; then "ended", "raised", "lost" (its channel was closed), "broken"
    (what came makes no sense) or "unanswered" (it was to be killed, and nobody said that it was).
    `why`: it was to be killed: "time", "interrupted" or "call" (that of the tool that wants it has
    had its time). `has_begun`: it may have run.
    On one thread, but for `cancel`. It has descriptors until it is closed.
    """

    def __init__(
        self,
        target: Target,
        order: bytes,
        feed: Feed | None,
        leaves: bool,
        asking: Asking | None = None,
    ) -> None:
        """`leaves`: something, such as a directory, that the session has from then on. `asking`:
        the call whose tool wants it, if any.
        """
        self.id = int.from_bytes(os.urandom(8), "little") | 1
        self.how = ""
        self.why = ""
        self.has_begun = False
        self.printed = _core.Output(target.terms.output_bytes)
        self._target = target
        self._feed = feed
        self._pipes: list[Pipe] = []
        self._ends: list[int] = []  # of its own pipes, to write to
        self._is_sent = False
        self._idle_since: float | None = None  # without a call, and not taken all the same
        self._leaves = leaves
        self._is_to_answer = False  # that it was killed
        self._asking = asking
        self._code, self._end = -1, _EXITED
        self._payload: _Payload | None = None
        self._cpu_us = self._peak_kb = 0
        self._frames = 0
        self._sent = self._ended = time.monotonic()
        self._deadline = float("inf")
        self._core: _core.Session | None = None
        self._restarts = 0  # of the interpreter, when it was begun
        self._is_busy: Callable[[], bool] = lambda: False
        self._order = -1
        self.channel, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.setblocking(False)
        try:
            self._order = os.memfd_create("hutch-command", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            _write_all(self._order, order)
            fcntl.fcntl(self._order, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            self.close()
            raise

    def inherit(self, left: list[Pipe]) -> None:
        """Pipes of commands before it that others may still print to."""
        self._pipes += left

    def send(self, core: _core.Session, is_busy: Callable[[], bool]) -> None:
        """Its time counts from here. `is_busy`: whether a call of the session runs. Where the
        interpreter takes no more, it is sent when that does, or lost if no call keeps it.
        """
        self._core, self._is_busy = core, is_busy
        self._restarts = core.restarts
        for stream in (0, 1):
            reading, writing = os.pipe2(os.O_CLOEXEC)
            self._pipes.append((stream, reading))
            self._ends.append(writing)
            os.set_blocking(reading, False)
        now = self._sent = time.monotonic()
        limit = self._target.options.timeout_sec
        self._deadline = float("inf") if limit is None else now + limit
        self._look_sec = _LOOK_SEC
        self._look_at = now if is_busy() else now + _LOOK_SEC
        self._use_at = now + _USE_SEC
        self._try_to_send()

    def _try_to_send(self) -> None:
        assert self._core is not None
        if self.why or self._core.restarts != self._restarts:
            return self._over("lost")
        if self._core.send_command([self._theirs.fileno(), *self._ends, self._order]):
            self._is_sent = True
            return self._close_ends()
        if self._is_busy():
            self._idle_since = None
            if self._asking is not None and self._asking.is_dead():
                self._over("lost")
            return None
        now = time.monotonic()
        self._idle_since = self._idle_since or now
        if self._core.unsettled or now - self._idle_since >= _TAKE_SEC:
            self._over("lost")
        return None

    def _close_ends(self) -> None:
        """Of what the other side has."""
        self._theirs.close()
        while self._ends:
            os.close(self._ends.pop())

    @property
    def descriptors(self) -> list[int]:
        """Readable: there is something to take."""
        return [self.channel.fileno(), *(fd for _, fd in self._pipes)]

    def patience(self) -> float:
        """Seconds until a step is due though nothing came."""
        due = min(self._deadline, self._use_at)
        if self._asking is not None and not self.why:
            due = min(due, time.monotonic() + self._asking.time_left())
        if not self.has_begun:
            due = min(due, self._look_at)
        return max(0.0, due - time.monotonic())

    def step(self) -> bool:
        """Takes what came, and never waits. True: it is over."""
        self._read_pipes()
        while not self.how and self._take_frame():
            pass
        if not self.how:
            self._look_at_clock(time.monotonic())
        if self.how:
            self._read_pipes()  # what was printed before its end
        return bool(self.how)

    def cancel(self, why: str) -> None:
        """It is killed with all that it has started. On any thread."""
        if self.why or self.how:
            return
        self.why = why
        waits = self._is_to_answer = self.has_begun  # else it never begins from here on
        self._deadline = time.monotonic() + (_END_SEC if waits else 0.0)
        try:
            self.channel.shutdown(socket.SHUT_WR if waits else socket.SHUT_RDWR)
        except OSError:
            pass  # it is at its end

    @property
    def is_stuck(self) -> bool:
        """It had begun, and nobody kills it."""
        return self.how == "unanswered" and self._is_to_answer

    def mute(self) -> None:
        """Nobody hears what it prints from now on."""
        self._feed = None

    def close(self) -> list[Pipe]:
        """Pipes that others may still print to."""
        left = self._pipes
        self._pipes = []
        self.channel.close()
        self._close_ends()
        order, self._order = self._order, -1
        if order >= 0:
            os.ftruncate(order, 0)  # whoever has it still
            os.close(order)
        return left

    # ---- what comes

    def _read_pipes(self) -> None:
        for stream, fd in list(self._pipes):
            room = _MOST_READ
            while room > 0:
                try:
                    data = os.read(fd, _READ)
                except BlockingIOError:
                    break
                if not data:
                    self._pipes.remove((stream, fd))  # first: none is closed twice after Ctrl-C
                    os.close(fd)
                    break
                room -= len(data)
                self.printed.add(stream, data)
                if self._feed is not None:
                    self._feed(stream, data)

    def _take_frame(self) -> bool:
        try:
            data = self.channel.recv(_MOST_FRAME)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._over("lost" if self._code < 0 else "ended")
            return False
        frame = _core.command_frame(data)
        self._frames += 1
        if frame is None or self._frames > _MOST_FRAMES:
            self._over("broken")
            return False
        kind, a, b, cpu_us, peak_kb, payload = frame
        if kind == "begun":
            self.has_begun = True
        elif kind == "ended" and self._code < 0:
            self._code, self._end, self._cpu_us, self._peak_kb = b, a, cpu_us, peak_kb
            self._ended = time.monotonic()
            if not self._leaves:
                self._over("ended")
            patience = _SETTLE_BESIDE_SEC if self._is_busy() else _SETTLE_SEC
            self._deadline = self._ended + patience
        elif kind == "raised" and self._code < 0:
            self._payload, self._end = _Payload(payload), a
            self._payload.body_size = len(payload)
            self._over("raised")
        else:
            self._over("ended" if kind == "done" and self._code >= 0 else "broken")
        return not self.how

    def _over(self, how: str) -> None:
        if self._code < 0:
            self._ended = time.monotonic()
        self.how = how

    def _look_at_clock(self, now: float) -> None:
        assert self._core is not None
        if now >= self._deadline:
            if self._code >= 0:
                self._over("ended")
            elif self.why:
                self._over("unanswered")
            else:
                self.cancel("time")
        elif self._asking is not None and self._asking.time_left() <= 0:
            self.cancel("call")
        if not self.has_begun and not self.how and now >= self._look_at:
            if not self._is_sent:
                self._try_to_send()
            if self._is_sent:
                self._core.look_for_commands()
            self._look_at = now + self._look_sec
            self._look_sec = min(2 * self._look_sec, _MOST_LOOK_SEC)
        if now >= self._use_at:
            self._core.count_use()
            self._use_at = now + _USE_SEC

    # ---- what became of it

    def outcome(self, enforcement: str) -> Outcome[Any]:
        """Its value is what was said to be the exit code. Not of one whose channel was closed."""
        outcome = self.begun_outcome(enforcement)
        usage = outcome.usage
        used = {"wall_sec": usage.wall_sec, "cpu_sec": usage.cpu_sec,
                "peak_memory_bytes": usage.peak_memory_bytes}  # fmt: skip
        if self.how == "raised":
            limit = _LIMITS.get(self._end, "")
            reply = Reply("limit" if limit else "raised", limit, self._payload, used)
        elif self.how == "ended" and self._end == _CPU_TIME:
            reply = Reply("limit", "cpu_time", usage=used)
        elif self.how == "ended" and self._end == _NO_THREAD:
            reply = Reply("limit", "pids", usage=used)
            outcome.may_have_run = self.has_begun
        elif self.why and (self.how != "ended" or self._end == _CANCELLED):
            if self.why != "time":
                return raised(outcome, {"type": "KeyboardInterrupt"}, self._target)
            reply = Reply("limit", "time", usage=used)
            outcome.may_have_run = self.has_begun
        elif self.how == "ended" and self._end in (_NO_SPACE, _NO_FILES):
            return self._of_full_disk(outcome, used)
        else:
            outcome.may_have_run = self._is_sent
            outcome.value = self._code if self.how == "ended" and self._end == _EXITED else None
            return outcome
        outcome.status = "limit" if reply.status == "limit" else "raised"
        outcome.limit = reply.limit or None
        conclude(self._target, reply, outcome)  # type: ignore[arg-type]
        return outcome

    def _of_full_disk(self, outcome: Outcome[Any], used: Any) -> Outcome[Any]:
        """Of one that failed while the disk was full, perhaps for another reason."""
        if _DISK_IS_FULL not in outcome.stderr:
            outcome.value = self._code
            return outcome
        outcome.status, outcome.limit, outcome.exit_code = "limit", "disk", self._code
        reply: Any = Reply("limit", "disk", usage=used)
        return limited(self._target, reply, outcome, no_files=self._end == _NO_FILES)

    def begun_outcome(self, enforcement: str) -> Outcome[Any]:
        """What is known of it whatever became of it."""
        outcome = Outcome[Any]("returned", call_id=f"{self.id:016x}")
        cpu, peak = self._cpu_us / 1e6, self._peak_kb << 10
        outcome.usage = Usage(self._ended - self._sent, cpu, peak, enforcement=enforcement)
        self.complete(outcome)
        return outcome

    def complete(self, outcome: Outcome[Any]) -> None:
        """With what was printed, and when."""
        printed = self.printed
        outcome.stdout, outcome.stderr = printed.text(0), printed.text(1)
        outcome.stdout_size, outcome.stderr_size = printed.size(0), printed.size(1)
        outcome.stdout_truncated, outcome.stderr_truncated = map(printed.truncated, (0, 1))
        outcome.call_id = f"{self.id:016x}"
        outcome.timings["run"] = self._ended - self._sent

    def tell(self, outcome: Outcome[Any], policy: int) -> None:
        """The agent, for its counts and its audit log."""
        if self._core is not None:
            ran = self._ended - self._sent
            limit, took = outcome.limit or "", outcome.usage.cpu_sec
            self._core.tell_command(self.id, outcome.status, limit, ran, took, policy)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def close_all(pipes: Sequence[Pipe]) -> None:
    for _, fd in pipes:
        os.close(fd)
