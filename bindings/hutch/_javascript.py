# SPDX-License-Identifier: Apache-2.0
"""JavaScript of a session. What Node replies comes from a sandbox: it may be anything."""

from __future__ import annotations

from collections.abc import Mapping
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any

from hutch import _core
from hutch._background import not_said
from hutch._calls import node
from hutch._calls.session_call import Operation, SessionTarget
from hutch._carry import arguments
from hutch._commands import Commands
from hutch._errors import SandboxDied, execution_error
from hutch._outcome import ErrorInfo, Outcome
from hutch._twins import awaits, result_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hutch._calls.target import Target
    from hutch._options.keyword_types import CallKeywords
    from hutch._options.options import Options
    from hutch._session_cell import SessionCell

_MOST_TEXT = 1 << 16  # characters
_MOST_NAME = 1000
_ABSENT = (
    'a package of npm: Session(node_dependencies=["its name"]); a file: s.files.upload(). Nothing '
    "is installed from inside"
)
_HINTS = (
    ("Cannot find module", _ABSENT),
    ("Cannot find package", _ABSENT),
)


class NodeTarget(SessionTarget):
    """One source for Node, with its limits."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.conclude = _conclude

    def with_keywords(self, keywords: str) -> str:
        return super().with_keywords(keywords).replace("exec(", "node(", 1)


class _NodeOperation(Operation):
    """Its arguments are those of the interpreter that is there when it is sent."""

    __slots__ = ()

    def pickled(self, target: Target) -> tuple[bytes, list[Any]]:
        given = self.of.node_arguments(target.options)
        return arguments.pickle_arguments(None, given, {})


class JavaScript(Commands):
    """The JavaScript of a session."""

    _cell: SessionCell
    _node_sent = -1  # the interpreter that was last lent Node
    _node_of = -1  # the one that has said that it has it
    _node_worker = ""  # one that has said that it shows Node

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
        target = self._node_target(source, limits)
        if self._asks_for_node(target.options):
            self._note_node(self._node_is_shown(limits))
        if not self._has_node(target.options):
            node.program(target.options)
        outcome: Outcome[Any] = self._evaluated(source, target, limits)
        return outcome

    def _node_target(self, source: object, limits: Mapping[str, Any]) -> NodeTarget:
        if not isinstance(source, str):
            raise TypeError(f"node() takes source text, not {type(source).__name__}")
        return NodeTarget(self._target(limits).options)

    def _has_node(self, options: Options) -> bool:
        """Whether the session's interpreter is known to have it. It may lie, to its own harm."""
        if self._node_of == self._cell.interpreter or node.is_among_packages(options):
            return True
        core = self._cell.core
        return core is not None and core.worker == self._node_worker != ""

    def _asks_for_node(self, options: Options) -> bool:
        """Whether the session's worker may show the Node that this caller would get."""
        return not self._has_node(options) and node.is_of_everybody()

    def _node_is_shown(self, limits: Mapping[str, Any]) -> Any:
        """What the session's process says, or of an AsyncSession what gives it. Whatever else
        becomes of the question is for the source to meet.
        """
        asked = Operation(self, "node.shown", limits=limits)
        return self._do(lambda outcome: outcome.ok and outcome.value is True, asked)

    def _note_node(self, is_shown: bool) -> None:
        core = self._cell.core
        self._node_worker = core.worker if is_shown and core is not None else ""

    def _evaluated(self, source: str, target: NodeTarget, limits: Mapping[str, Any]) -> Any:
        """The Outcome, or of an AsyncSession what gives it."""
        code = _core.Function(source.encode("utf-8", "surrogatepass"))

        def finish(outcome: Outcome[Any]) -> Outcome[Any]:
            error = outcome.error
            if error is not None and error.type == "RuntimeError":  # perhaps as there is no Node
                self._node_worker, self._node_of = "", -1
            elif outcome.status in ("returned", "raised", "died"):
                self._node_of = self._node_sent
            return outcome

        return self._do(finish, _NodeOperation(self, "node", code, limits=limits, target=target))

    def node_arguments(self, options: Options) -> tuple[Any, ...]:
        """What the session's process is given with a source."""
        has_it = self._has_node(options)
        self._node_sent = self._cell.interpreter
        lent = None if has_it else PickleBuffer(node.program(options))
        return node.heap_mb(options), lent


class AsyncJavaScript:
    """The same, awaited."""

    _of: JavaScript  # whose methods give awaitables

    @awaits(JavaScript.node)
    async def node(self, source: str, /, **limits: Unpack[CallKeywords]) -> Outcome[Any]:
        return await result_of(self._of.node, source, **limits)


def _conclude(outcome: Outcome[Any]) -> None:
    """The reply says in three parts what became of it: see images/worker/javascript.py."""
    if not outcome.ok:
        return
    reply, outcome.value = outcome.value, None
    if type(reply) is not tuple or len(reply) != 3 or type(reply[2]) is not bool:
        _raise_in(outcome, not_said())
        return
    kind, content, outcome.restarted = reply
    if kind == "value":
        outcome.value = content
    elif kind == "error" and type(content) is list and len(content) == 4:
        _raised(outcome, content)
    elif kind == "died" and type(content) is int and 0 <= content < 256:
        _died(outcome, content)
    elif kind != "shown":
        _raise_in(outcome, not_said())


def _raised(outcome: Outcome[Any], told: list[Any]) -> None:
    name, message, stack, line = told
    if not all(type(text) is str for text in told[:3]):
        return _raise_in(outcome, not_said())
    message = message[:_MOST_TEXT]
    hint = next((hint for start, hint in _HINTS if message.startswith(start)), "")
    at = line if type(line) is int and 0 < line < 1 << 31 else None
    outcome.error = ErrorInfo(name[:_MOST_NAME], message, stack[:_MOST_TEXT], at, hint)
    outcome.status = "raised"
    outcome.fail(execution_error(outcome.error))
    return None


def _died(outcome: Outcome[Any], code: int) -> None:
    outcome.status = "died"
    outcome.exit_code = code
    hint = "the next node() starts it again, without its names"
    outcome.fail(SandboxDied(f"Node ended with exit code {code}", hint=hint, exit_code=code))


def _raise_in(outcome: Outcome[Any], error: Any) -> None:
    outcome.status = "raised"
    outcome.error = ErrorInfo(type(error).__name__, error.message, hint=error.hint)
    outcome.fail(error)
