# SPDX-License-Identifier: Apache-2.0
"""What is done to a session as a whole: it is interrupted, restarted, given packages, saved,
brought back and ended. For an AsyncSession some of it is overridden (_awaited_life.py).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection

from hutch import _core
from hutch._carry.container import Container, Given
from hutch._errors import SessionBusy
from hutch._restored import Restored, dispensable_of
from hutch._session_engine import Engine
from hutch._session_packages import requirements_of
from hutch._session_refusals import commands_run, not_restartable
from hutch._session_turn import Surely

_INTERRUPTED_SEC = 5.0  # at its end, a call that runs has so long to end
GIVEN_UP_SEC = 15.0  # it is saved in so long for whoever wants it, or is kept
_PATIENCE_SEC = 0.2  # until a call ends, where it can be saved later


class Life:
    """Of the session that `engine` makes the calls of."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def interrupt(self) -> None:
        """The call that runs, and the commands, from any thread."""
        engine = self._engine
        engine.turn.require_own()
        engine.turn.interrupt()  # first: code whose tool runs a command goes on once that is killed
        engine.beside.interrupt()

    def install(self, requirements: tuple[str, ...]) -> list[str]:
        engine = self._engine
        wanted = requirements_of(requirements, engine.options)
        with engine.kept.history.of_install(" ".join(wanted)):
            return engine.contents.packages.install(wanted)

    def reset(self, files: bool) -> None:
        with Surely(self._engine.turn), self._engine.turn:
            core = self._to_restart(files)
            if core is not None:
                core.restart()
                self._engine.note_end()
            self._engine.told(False)

    def _to_restart(self, files: bool) -> _core.Session | None:
        """What is to be restarted. With `files`, nothing: the next call begins anew."""
        engine = self._engine
        if engine.beside.any:
            raise commands_run()
        core = engine.cell.core
        if core is None:
            return None
        if files:
            engine.cell.give_up()
            engine.contents.is_new = True
            engine.lose_names()
            return None
        if core.started and not core.restartable:
            raise not_restartable()
        return core

    def snapshot(self, to: str | os.PathLike[str] | None, with_globals: bool) -> bytes | None:
        return self._engine.contents.take(to, with_globals)

    def restore(
        self, snapshot: Given, with_globals: bool, dispensable: Collection[str]
    ) -> Restored:
        engine, without = self._engine, dispensable_of(dispensable)
        if engine.beside.any:
            raise commands_run()
        with contextlib.closing(Container(snapshot)) as container:
            return engine.contents.restore(container, with_globals, without, engine.end_names)

    # ---- its end

    def close(self, why: str = "it was closed") -> None:
        self._end(why)

    def let_go(self, why: str) -> None:
        """Ends one that nothing refers to any more."""
        self.close(why)

    def _end(self, why: str) -> None:
        engine = self._engine
        try:
            self._save_before_end()
        finally:
            engine.cell.closed = engine.cell.closed or why
            engine.beside.close(engine.cell.pid)
            try:
                if not engine.turn.end():
                    self.interrupt()
            finally:
                engine.contents.close()

    # ---- of a named one

    def _has_to_be_saved(self) -> bool:
        engine = self._engine
        if engine.named is None or engine.cell.closed or engine.cell.pid != os.getpid():
            return False
        return engine.named.is_dirty or bool(engine.running)

    def _save_before_end(self) -> None:
        """Interrupts a call that runs on another thread."""
        if self._has_to_be_saved():
            self._save_in_turn(_INTERRUPTED_SEC, interrupts=True)

    def waits_here(self) -> bool:
        """Whether it makes no call while this thread is kept: it runs one for it."""
        return self._engine.turn.is_taken_here

    def save_idle(self) -> bool:
        """Saves it, on the thread that looks after named sessions. False: it is in use."""
        if self._engine.cell.closed:
            return True
        try:
            self._save_in_turn(_PATIENCE_SEC, interrupts=False)
        except SessionBusy:
            return False
        self._save_again_later()
        return True

    def _save_again_later(self) -> None:
        """What commands that run change is in no save of before their end."""
        engine = self._engine
        if engine.beside.any and engine.named is not None:
            engine.named.go_on()

    def _save_in_turn(self, patience_sec: float, interrupts: bool) -> None:
        """Saves it; calls that begin meanwhile wait until it is saved."""
        until = time.monotonic() + patience_sec
        with self._engine.turn.of_saves():
            while self._is_to_wait(interrupts) and time.monotonic() < until:
                if interrupts and not self._waits_for_tool():
                    self.interrupt()
                elif interrupts:
                    break
                time.sleep(0.005)
            if self._has_to_be_saved():  # also after whoever had the turn before
                self._save()

    def _is_to_wait(self, interrupts: bool) -> bool:
        return self._engine.turn.is_taken or (interrupts and self._engine.beside.any)

    def _waits_for_tool(self) -> bool:
        """Whether a tool of the call that runs is the caller of this."""
        talk = self._engine.talk
        return talk is not None and talk.waits_here()

    def _save(self) -> None:
        """Raises SessionBusy where another call runs, and what calls and the storage raise."""
        with self._engine.call_of_parts():
            save = self._taken()
        save()

    def _taken(self) -> Callable[[], None]:
        """Its state; what is returned puts it into the storage."""
        return self._engine.contents.taken_to_save(self._engine.space.known)

    def give_up(self, why: str, patience_sec: float = 0.0, keeps: bool = False) -> None:
        """Saves and ends it, on the thread that looks after named sessions. A call that runs is
        interrupted after `patience_sec`. `keeps`: it goes on where it cannot be saved, which is
        raised.
        """
        until = time.monotonic() + patience_sec
        turn = self._engine.turn
        with turn.of_saves():
            while turn.is_taken and time.monotonic() < until:
                time.sleep(0.005)
            if keeps and self._has_to_be_saved():
                self._save_in_turn(GIVEN_UP_SEC, interrupts=True)
            self._end(why)
