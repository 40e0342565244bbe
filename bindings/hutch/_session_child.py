# SPDX-License-Identifier: Apache-2.0
"""What the host knows of the names of a session's child."""

from __future__ import annotations

from collections.abc import Iterable

from hutch._calls.session_call import Space
from hutch._session_cell import SessionCell
from hutch._session_refusals import child_has_ended


class ChildSpace(Space):
    """It ends with the interpreter, or is closed: `ended` gets its number then."""

    def __init__(
        self, number: int, known: Iterable[str], cell: SessionCell, ended: list[int]
    ) -> None:
        super().__init__(number, known)
        self._cell = cell
        self._interpreter = cell.interpreter
        self._names = cell.names
        self._ended = ended
        self.is_closed = False

    @property
    def is_lost(self) -> bool:
        """Whether its interpreter has ended, or a restore has replaced its names."""
        return self._interpreter != self._cell.interpreter or self._is_replaced

    @property
    def _is_replaced(self) -> bool:
        return self._names != self._cell.names

    def close(self) -> None:
        """Nothing is called here: another call may run meanwhile."""
        self.is_closed = True
        self._ended.append(self.number)

    def require(self) -> None:
        if self._is_replaced:
            raise child_has_ended("its session was restored")
        if self.is_lost:
            raise child_has_ended("the interpreter of its session was restarted")
        if self.is_closed:
            raise child_has_ended("it was closed")
