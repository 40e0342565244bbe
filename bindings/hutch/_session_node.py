# SPDX-License-Identifier: Apache-2.0
"""How a session evaluates JavaScript: it is one of its calls, to which Node is lent where the
session's process has none. For an AsyncSession it is overridden (_awaited_session.py). What Node
replies comes from a sandbox: it may be anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any

from hutch import _core
from hutch._background import not_said
from hutch._calls import node
from hutch._calls.session_call import Operation, SessionTarget
from hutch._carry import arguments
from hutch._errors import SandboxDied, execution_error
from hutch._node_hints import node_hint
from hutch._outcome import ErrorInfo, Outcome
from hutch._session_engine import Engine

if TYPE_CHECKING:
    from hutch._calls.target import Target
    from hutch._options.options import Options


_MOST_TEXT = 1 << 16  # characters
_MOST_NAME = 1000


class NodeTarget(SessionTarget):
    """One source for Node, with its limits. `arguments()`: what goes with it."""

    def __init__(self, options: Options, arguments: Callable[[], tuple[Any, ...]]) -> None:
        super().__init__(options)
        self.arguments = arguments
        has_network = bool(options.allow_network)
        self.conclude = lambda outcome: _conclude(outcome, has_network)

    def with_keywords(self, keywords: str) -> str:
        return super().with_keywords(keywords).replace("exec(", "node(", 1)


class _NodeOperation(Operation):
    """Its arguments are those of the interpreter that is there when it is sent."""

    __slots__ = ()

    def pickled(self, target: Target) -> tuple[bytes, list[Any]]:
        assert isinstance(target, NodeTarget)
        return arguments.pickle_arguments(None, target.arguments(), {})


class NodeCalls:
    """Of the session that `engine` makes the calls of."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sent = -1  # the interpreter that was last lent Node
        self._of = -1  # the one that has said that it has it
        self._worker = ""  # one that has said that it shows Node

    def evaluate(self, source: str, limits: Mapping[str, Any]) -> Outcome[Any]:
        """The Outcome, or of an AsyncSession what gives it."""
        target = self._target(source, limits)
        if self._asks(target.options):
            self._note(self._is_shown(limits))
        if not self._has_it(target.options):
            node.program(target.options)
        return self._evaluated(source, target, limits)

    def _target(self, source: object, limits: Mapping[str, Any]) -> NodeTarget:
        if not isinstance(source, str):
            raise TypeError(f"node() takes source text, not {type(source).__name__}")
        options = self._engine.target(limits).options
        return NodeTarget(options, lambda: self._arguments(options))

    def _has_it(self, options: Options) -> bool:
        """Whether the session's interpreter is known to have it. It may lie, to its own harm."""
        cell = self._engine.cell
        if self._of == cell.interpreter or node.is_among_packages(options):
            return True
        return cell.core is not None and cell.core.worker == self._worker != ""

    def _asks(self, options: Options) -> bool:
        """Whether the session's worker may show the Node that this caller would get."""
        return not self._has_it(options) and node.is_of_everybody()

    def _is_shown(self, limits: Mapping[str, Any]) -> bool:
        """What the session's process says, or of an AsyncSession what gives it. Whatever else
        becomes of the question is for the source to meet.
        """
        asked = Operation(self._engine.space, "node.shown", limits=limits)
        return self._engine.do(lambda outcome: outcome.ok and outcome.value is True, asked)

    def _note(self, is_shown: bool) -> None:
        core = self._engine.cell.core
        self._worker = core.worker if is_shown and core is not None else ""

    def _evaluated(
        self, source: str, target: NodeTarget, limits: Mapping[str, Any]
    ) -> Outcome[Any]:
        code = _core.Function(source.encode("utf-8", "surrogatepass"))

        def finish(outcome: Outcome[Any]) -> Outcome[Any]:
            error = outcome.error
            if error is not None and error.type == "RuntimeError":  # perhaps as there is no Node
                self._worker, self._of = "", -1
            elif outcome.status in ("returned", "raised", "died"):
                self._of = self._sent
            return outcome

        of = self._engine.space
        operation = _NodeOperation(of, "node", code, limits=limits, target=target)
        return self._engine.do(finish, operation)

    def _arguments(self, options: Options) -> tuple[Any, ...]:
        """What the session's process is given with a source."""
        has_it = self._has_it(options)
        self._sent = self._engine.cell.interpreter
        lent = None if has_it else PickleBuffer(node.program(options))
        return node.heap_mb(options), lent


def _conclude(outcome: Outcome[Any], has_network: bool) -> None:
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
        _raised(outcome, content, has_network)
    elif kind == "died" and type(content) is int and 0 <= content < 256:
        _died(outcome, content)
    elif kind != "shown":
        _raise_in(outcome, not_said())


def _raised(outcome: Outcome[Any], told: list[Any], has_network: bool) -> None:
    name, message, stack, line = told
    if not all(type(text) is str for text in told[:3]):
        return _raise_in(outcome, not_said())
    message = message[:_MOST_TEXT]
    hint = node_hint(f"{message}\n{stack[:_MOST_TEXT]}", has_network)
    at = line if type(line) is int and 0 < line < 1 << 31 else None
    outcome.error = ErrorInfo(name[:_MOST_NAME], message, stack[:_MOST_TEXT], at, hint)
    outcome.status = "raised"
    outcome.fail(execution_error(outcome.error))
    return None


def _died(outcome: Outcome[Any], code: int) -> None:
    outcome.status = "died"
    outcome.exit_code = code
    hint = node_hint(outcome.stderr) or "the next node() starts it again, without its names"
    outcome.fail(SandboxDied(f"Node ended with exit code {code}", hint=hint, exit_code=code))


def _raise_in(outcome: Outcome[Any], error: Any) -> None:
    outcome.status = "raised"
    outcome.error = ErrorInfo(type(error).__name__, error.message, hint=error.hint)
    outcome.fail(error)
