# SPDX-License-Identifier: Apache-2.0
"""A call of a session whose tool, or `on_input=`, has commands run: they run beside it, and end
with it. On the call's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from hutch import _core
from hutch._calls.dialogue import Dialogue, call_has_ended

if TYPE_CHECKING:
    from hutch._calls.history import Note


class Asking:
    """`entry`: that of the tool in the history. `is_open`: whether the tool still runs; later, what
    it has left under way is a command as any other.
    """

    def __init__(
        self,
        talk: Dialogue,
        core: _core.Session,
        entry: Note | None,
        is_open: Callable[[], bool] = lambda: True,
    ) -> None:
        self.entry = entry
        self._talk = talk
        self._core = core
        self._is_open = is_open

    @property
    def is_open(self) -> bool:
        return self._is_open()

    def require(self) -> None:
        """Raises StopExec where the call has ended meanwhile."""
        if self._talk.is_over or self.time_left() <= 0:
            raise call_has_ended()

    def time_left(self) -> float:
        """Seconds until the call's time limit."""
        return self._core.time_left if self.is_open else float("inf")

    def is_dead(self) -> bool:
        """Whether the interpreter has ended which runs the call."""
        return self.is_open and self._core.has_ended

    def running(self) -> AbstractContextManager[None]:
        """While a command runs."""
        return self._talk.running_command()
