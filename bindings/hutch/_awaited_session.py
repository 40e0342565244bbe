# SPDX-License-Identifier: Apache-2.0
"""A Session on an engine whose calls are awaited: what AsyncSession holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hutch._awaited_commands import AwaitedCommands
from hutch._awaited_engine import AwaitedEngine
from hutch._awaited_life import AwaitedLife
from hutch._calls import loops, node
from hutch._session import Session
from hutch._session_node import NodeCalls
from hutch._twins import result_of

if TYPE_CHECKING:
    from hutch._outcome import Outcome


class AwaitedNode(NodeCalls):
    async def evaluate(  # type: ignore[override]
        self, source: str, limits: Mapping[str, Any]
    ) -> Outcome[Any]:
        target = self._target(source, limits)
        if self._asks(target.options):
            self._note(await result_of(self._is_shown, limits))
        if not self._has_it(target.options):
            await loops.on_thread(lambda: node.program(target.options))
        return await result_of(self._evaluated, source, target, limits)


class Awaited(Session):
    """Its methods give awaitables of what those of a Session give, but for `interrupt`, `info`,
    `history` and `close`, which ends it at once. On the loop's thread.
    """

    _made_of = (AwaitedEngine, AwaitedLife, AwaitedCommands, AwaitedNode)
    _engine: AwaitedEngine
    _life: AwaitedLife

    async def end(self) -> None:
        """As `close`; a call that runs is waited for."""
        await self._life.end()
