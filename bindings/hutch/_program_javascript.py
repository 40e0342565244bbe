# SPDX-License-Identifier: Apache-2.0
"""A program for Node, as a Python program that starts it and ends as it does."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any

from hutch._calls import node
from hutch._calls.target import ProgramTarget
from hutch._node_hints import node_hint

if TYPE_CHECKING:
    from hutch import _core
    from hutch._carry.survey import Watch
    from hutch._options.options import Options

# The same for all programs, so that a cell in which Node has started ahead serves any of them. No
# word of it looks as if the program were to find its own file.
STARTER = """\
import sys, _hutch_javascript
sys.exit(_hutch_javascript.run_program(getattr(sys, "arg" "v")[1:]))
"""


class JavaScriptTarget(ProgramTarget):
    """The program is an argument of its calls."""

    runs_node = True

    def __init__(self, source: str, filename: str, options: Options, nonce: str) -> None:
        """`filename`: of the file that has the program, where it runs."""
        super().__init__(STARTER, "the program", node.among_packages(options), nonce, "start.py")
        self._javascript = source.encode("utf-8", "surrogateescape")
        self._place = filename
        self._lends = not node.is_among_packages(self.options)

    def with_source(self, source: str) -> ProgramTarget:
        made = copy.copy(self)
        made._javascript = source.encode("utf-8", "surrogateescape")
        return made

    def hint_of_exit(self, stderr: str) -> str:
        return node_hint(stderr, bool(self.options.allow_network))

    def watch(self, code: _core.Function) -> Watch | None:
        return None  # the text of the program is an argument, which the fast path has not

    def fields(self) -> dict[str, Any]:
        place = self._place, node.heap_mb(self.options)
        return {**super().fields(), "node": place, "ahead": not self._lends}

    def meta(self, code: _core.Function, mode: str = "") -> bytes:
        fields = {"mode": "program", **self.fields(), **self._common_meta(code)}
        return pickle.dumps(fields, 5)

    def pickle(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[bytes, list[Any]]:
        buffers: list[Any] = []
        given = {name: x for name, x in kwargs.items() if x or x == b""}
        given["javascript"] = self._javascript
        if self._lends:
            given["node"] = PickleBuffer(node.program(self.options))
        return pickle.dumps(((), given), 5, buffer_callback=buffers.append), buffers
