# SPDX-License-Identifier: Apache-2.0
"""A call whose bytes are made, ready to be sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hutch import _core
    from hutch._calls.target import Target
    from hutch._connect.connection import PreparedPool

    # From what came back to what the future gets: an Outcome, or a list of them.
    Finish = Callable[[_core.CallResult, PreparedPool], Any]


class PreparedCall:
    """A call's bytes, made. `begun`: when that began, by time.monotonic."""

    __slots__ = ("target", "code", "meta", "arguments", "buffers", "echo", "begun", "finish")

    def __init__(
        self,
        target: Target,
        code: _core.Function,
        meta: bytes,
        pickled: tuple[bytes, Sequence[Any]],
        echo: bool,
        begun: float,
        finish: Finish,
    ) -> None:
        self.target = target
        self.code = code
        self.meta = meta
        self.arguments, self.buffers = pickled
        self.echo = echo
        self.begun = begun
        self.finish = finish
