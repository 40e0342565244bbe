# SPDX-License-Identifier: Apache-2.0
"""The caller's answers, for the threads and coroutines that wait for them. Several questions may be
open at once. One thread at a time reads, for all; nobody does once the call is over.

Those of tools that run at the same time have places, of which there are so many. A question keeps
its place until its answer has come, also where nobody waits for that any more: the caller counts
the same ones.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from _hutch_cell import ANSWER  # type: ignore[import-not-found,unused-ignore]

MOST_OPEN = 16  # questions at once; _calls/within.py refuses more
MOST_BYTES = 8 << 20  # of them, unless it is one; the same
LOOK_MS = 50  # so often who reads for a place looks whether the call ends
OVER = ("error", "RuntimeError", "the call that asked has ended")
_thread = threading.get_ident


class Place:
    """Of a question of so many bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.is_left = False  # its question is: its answer gives it back


class Waiter:
    """A future of a loop, on whose thread it is made."""

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self.future = loop.create_future()

    def give(self, value: Any, is_here: bool) -> None:
        """`is_here`: on its loop's thread."""
        if is_here:
            self._set(value)
            return
        try:
            self.loop.call_soon_threadsafe(self._set, value)
        except RuntimeError:  # it is closed
            pass

    def _set(self, value: Any) -> None:
        if not self.future.done():
            self.future.set_result(value)


class Answers:
    """`got_large` is called once an answer that came in memory of the caller's was copied."""

    def __init__(self, cell: Any, fd: int, got_large: Callable[[], None]) -> None:
        self.cell = cell
        self.fd = fd
        self.got_large = got_large
        self.changed = threading.Condition()
        self.call_id = 0  # 0: none runs
        self.reader = 0  # the thread that reads
        self.waiting: dict[int, Waiter | None] = {}  # by number; None: for a thread
        self.threads: dict[int, int] = {}  # that ask, by number, until each has its answer
        self.found: dict[int, Any] = {}
        self.watching: dict[Any, int] = {}  # loops, with how many wait there
        self.places: set[Place] = set()
        self.left: dict[int, Place] = {}  # of questions whose answers nobody waits for, by number
        self.ends = False  # the call does: nobody asks anew
        # Coroutines that ask when others are answered. A loop may wait for what another one runs.
        self.queues: dict[Any, deque[Waiter]] = {}

    def forget_all(self) -> None:
        """What an interrupt has left of the call before."""
        with self.changed:
            if self.reader == _thread():
                self.reader = 0
            self.found.clear()

    def end(self) -> None:
        """Once all threads have their answers. Coroutines that wait for one are told that the call
        is over.
        """
        with self.changed:
            if self.reader == _thread():
                self.reader = 0
            self.ends = True
            self.changed.notify_all()
            for number, thread in list(self.threads.items()):
                if thread == _thread():  # which was interrupted
                    del self.threads[number]
            while self.reader or self.threads:
                self.changed.wait()
            self.call_id = 0
            left = [one for one in self.waiting.values() if one is not None]
            left += [one for queue in self.queues.values() for one in queue]
            self.waiting.clear()
            self.queues.clear()
            watching = list(self.watching)
            self.watching.clear()
            self.places.clear()
            self.left.clear()
        for loop in watching:
            if loop.is_running():
                loop.call_soon_threadsafe(loop.remove_reader, self.fd)
            elif not loop.is_closed():
                loop.remove_reader(self.fd)
        for one in left:
            one.give(OVER, not one.loop.is_running())

    def expect(self, number: int, waiter: Waiter | None) -> None:
        """Before the question is sent. Raises RuntimeError once the call is over: who waited would
        read what is the next one's.
        """
        with self.changed:
            if not self.call_id:
                raise RuntimeError(OVER[2])
            self.waiting[number] = waiter
            if waiter is None:
                self.threads[number] = _thread()

    def forget(self, number: int, place: Place | None = None) -> None:
        """`place`: which it keeps, if it has no answer yet."""
        with self.changed:
            if number in self.waiting and place is not None:
                self.left[number] = place
                place.is_left = True
            self.waiting.pop(number, None)
            self.found.pop(number, None)
            if self.threads.pop(number, None) is not None:
                self.changed.notify_all()

    # ---- a thread waits

    def wait(self, number: int, place: Place | None = None) -> Any:
        try:
            while True:
                leads = False
                try:
                    with self.changed:
                        while number not in self.found and self.reader:
                            self.changed.wait()
                        if number in self.found:
                            return self.found[number]
                        leads = True
                        self.reader = _thread()
                    self._take(self.cell.recv(self.fd))
                finally:
                    if leads:
                        self._stop_reading()
        finally:
            self.forget(number, place)

    def _stop_reading(self) -> None:
        with self.changed:
            self.reader = 0
            self.changed.notify_all()

    def _take(self, frame: Any, loop: Any = None) -> None:
        """`loop`: that of this thread, which it runs."""
        if frame is None:
            os._exit(0)
        kind, _, call_id, number, _, payload, descriptors = frame
        if kind != ANSWER or call_id != self.call_id:
            for fd in descriptors:
                os.close(fd)
            return
        answer = loaded(payload, descriptors)
        waiter = place = None
        with self.changed:
            if number in self.waiting:
                waiter = self.waiting.pop(number)
                if waiter is None:
                    self.found[number] = answer
            elif answer[0] != "run":  # after which another one comes
                place = self.left.pop(number, None)
        if waiter is not None:
            waiter.give(answer, waiter.loop is loop)
        if place is not None:
            self._free(place)
        if descriptors:
            self.got_large()

    # ---- a loop does

    def watch(self, loop: Any) -> None:
        with self.changed:
            self.watching[loop] = self.watching.get(loop, 0) + 1
            is_new = self.watching[loop] == 1
        if not is_new:
            return
        try:
            loop.add_reader(self.fd, self._read, loop)
        except FileExistsError:  # an interrupt came while asyncio added or removed it
            loop._selector._selector.unregister(self.fd)
            loop.add_reader(self.fd, self._read, loop)

    def unwatch(self, loop: Any) -> None:
        with self.changed:
            left = self.watching.get(loop, 0) - 1
            if left > 0:
                self.watching[loop] = left
            elif self.watching.pop(loop, None) is None:
                return  # the call is over
        if left <= 0:
            loop.remove_reader(self.fd)

    def _read(self, loop: Any) -> None:
        with self.changed:
            if self.reader or not self.call_id:
                return
            self.reader = _thread()
        try:
            frame = self.cell.recv(self.fd, False)
            if frame != ():
                self._take(frame, loop)
        finally:
            self._stop_reading()

    # ---- so many questions at once

    def enter(self, size: int) -> Place:
        """Waits for room, in a thread. It reads where nobody does, as nobody has to who left."""
        place = Place(size)
        while True:
            with self.changed:
                if self.ends:
                    raise RuntimeError(OVER[2])
                if self.has_room(size):
                    self.places.add(place)
                    return place
                if self.reader:
                    self.changed.wait()
                    continue
                self.reader = _thread()
            try:
                frame = self._recv_soon()
                if frame != ():
                    self._take(frame)
            finally:
                self._stop_reading()

    def _recv_soon(self) -> Any:
        """(), if there is nothing."""
        import select

        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return self.cell.recv(self.fd, False) if poll.poll(LOOK_MS) else ()

    async def enter_later(self, loop: Any, size: int) -> Place:
        """Those of one loop have turns. REQUIRES: it is watched, so that answers are read."""
        place = Place(size)
        is_next = False
        while True:
            with self.changed:
                if self.has_room(size) and (is_next or loop not in self.queues):
                    self.places.add(place)
                    following = self._next(loop) if len(self.places) < MOST_OPEN else None
                    break
                waiter = Waiter(loop)
                queue = self.queues.setdefault(loop, deque())
                if is_next:
                    queue.appendleft(waiter)
                else:
                    queue.append(waiter)
            try:
                if await waiter.future is OVER:
                    raise RuntimeError(OVER[2])
            except BaseException:  # as it was cancelled, perhaps once it was the next
                self._leave_queue(loop, waiter)
                raise
            is_next = True
        if following is not None:
            following.give(None, False)
        return place

    def has_room(self, size: int) -> bool:
        with self.changed:
            asked = sum(one.size for one in self.places)
            few = len(self.places) < MOST_OPEN and asked + size <= MOST_BYTES
            return few or not self.places

    def _next(self, loop: Any) -> Waiter | None:
        """The first one of its queue, which looks again whether there is room."""
        queue = self.queues.pop(loop, None)
        if not queue:
            return None
        first = queue.popleft()
        if queue:
            self.queues[loop] = queue
        return first

    def _leave_queue(self, loop: Any, waiter: Waiter) -> None:
        with self.changed:
            following = None
            if loop in self.queues:
                with contextlib.suppress(ValueError):  # it was the next
                    self.queues[loop].remove(waiter)
                following = self._next(loop)
        if following is not None:
            following.give(None, False)

    def leave(self, place: Place) -> None:
        if not place.is_left:
            self._free(place)

    def _free(self, place: Place) -> None:
        """One coroutine of each loop looks again: a loop may wait for what another one runs."""
        with self.changed:
            self.places.discard(place)
            following = [self._next(loop) for loop in list(self.queues)]
            self.changed.notify_all()
        for one in following:
            if one is not None:
                one.give(None, False)

    @contextlib.contextmanager
    def outside(self, place: Place) -> Iterator[None]:
        """While code runs that asks in its turn."""
        call_id = self.call_id
        self.leave(place)
        try:
            yield
        finally:
            with self.changed:
                if call_id == self.call_id:
                    self.places.add(place)


def loaded(payload: bytes, descriptors: Any) -> Any:
    """The answer; what loading it raises is one, too."""
    try:
        if not descriptors:
            return pickle.loads(payload)
        fd = descriptors[0]
        try:
            size = os.fstat(fd).st_size
            with mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as content:
                return pickle.loads(content[:])
        finally:
            os.close(fd)
    except Exception as error:
        return "lost", error
