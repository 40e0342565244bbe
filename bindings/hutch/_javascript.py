# SPDX-License-Identifier: Apache-2.0
"""JavaScript of a session, as users have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hutch._commands import Commands
from hutch._outcome import Outcome
from hutch._session_node import NodeCalls
from hutch._twins import awaits, result_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hutch._options.keyword_types import CallKeywords


class JavaScript(Commands):
    """The JavaScript of a session."""

    _node: NodeCalls

    def node(self, source: str, /, **limits: Unpack[CallKeywords]) -> Outcome[Any]:
        """Evaluates JavaScript in the session's Node, whose names last from one call to the next.
        The Outcome's value is the completion value as data, of a promise what it is fulfilled with;
        `console.log` prints to `stdout`. `await`, `import` and a `const` that is declared anew work
        outside functions; `require`, `import` and `process.cwd()` refer to the directory of the
        session's commands. `limits`: as in `exec()`.

        What JavaScript throws is "raised", with its name, message and line. Where Node ends, as by
        `process.exit(3)`, the Outcome is "died", with the exit code; where it had ended before,
        `restarted` is true: its names are lost. At a time limit it is ended.

        Node is fetched the first time on a machine, as packages are (some 60 MB): that raises
        DependencyInstallError where there is no index. Raises what exec() raises.

            with Session() as s:
                s.node("const double = (n) => 2 * n")
                assert s.node("[1, 2].map(double)").value == [2, 4]
        """
        return self._node.evaluate(source, limits)


class AsyncJavaScript:
    """The same, awaited."""

    _of: JavaScript  # whose methods give awaitables

    @awaits(JavaScript.node)
    async def node(self, source: str, /, **limits: Unpack[CallKeywords]) -> Outcome[Any]:
        return await result_of(self._of.node, source, **limits)
