# SPDX-License-Identifier: Apache-2.0
"""How a session runs commands: beside its calls and each other, on the thread of whoever wants one.
Those that a tool wants run beside the call that waits for the tool, and end with it. For an
AsyncSession it is overridden (_awaited_commands.py).
"""

from __future__ import annotations

import pickle
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from signal import SIGKILL
from typing import Any, TypeAlias, TypeVar

from hutch import _core
from hutch._calls.asking import Asking
from hutch._calls.command_run import CommandRun
from hutch._calls.dialogue import Feed, call_has_ended
from hutch._calls.echo import Streams, streams_of
from hutch._calls.history import Note
from hutch._calls.outcomes import measured, outcome_of
from hutch._calls.session_call import Operation, tell_of_its_end
from hutch._command_target import CommandTarget
from hutch._errors import SandboxDied, SandboxError, SessionBusy
from hutch._faults import from_core
from hutch._outcome import Outcome
from hutch._session_engine import Engine
from hutch._session_refusals import has_ended
from hutch._session_turn import Surely

T = TypeVar("T")

ATTEMPTS = 3  # of what certainly did not begin
PAUSE_SEC = 0.002  # until it is tried again whether a call is over
# Until it is known why its channel was closed: cells whose agent is gone end within ten seconds.
PATIENCE_SEC = 12.0
DEAD_SEC = 2.0  # until it is known that the interpreter has ended which closed it


# How an interpreter has ended, and whether during a call.
End: TypeAlias = tuple[_core.CallResult, bool]


@dataclass
class Command:
    """`asking`: the call whose tool wants it. `restarts`: of the interpreter, when it was sent;
    `restarted`: it had ended before.
    """

    operation: Operation
    target: Any
    asking: Asking | None
    note: Note | None
    run: CommandRun
    streams: Streams | None
    core: _core.Session
    restarts: int
    restarted: bool

    @property
    def certainly_did_not_begin(self) -> bool:
        return self.is_lost and not self.run.has_begun

    @property
    def is_lost(self) -> bool:
        """Its interpreter has closed its channel."""
        return self.run.how == "lost" and not self.run.why


class CommandCalls:
    """Of the session that `engine` makes the calls of."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    # ---- for what start() started

    def ask(self, finish: Callable[[Any], T], verb: str, *args: Any) -> T:
        """What `finish` makes of what the session replies."""
        asked = Operation(self.engine.space, verb, args=args)
        return self.engine.do(lambda outcome: finish(outcome.unwrap()), asked)

    def wait_for(
        self, process: tuple[int, int], command: str, timeout_sec: float | None
    ) -> Outcome[None]:
        """The Outcome of a program that start() started, once it has ended."""
        engine = self.engine
        options = engine.target({"timeout_sec": timeout_sec}).options
        target = CommandTarget("wait", options, command, False)
        args = (process, target.terms.output_bytes)

        def finish(outcome: Outcome[Any]) -> Outcome[None]:
            if outcome.exit_code is not None:
                engine.running.pop(process, None)
            return outcome

        return engine.do(finish, Operation(engine.space, "process.wait", args=args, target=target))

    def tell(self, verb: str, process: tuple[int, int], command: str, *args: Any) -> None:
        """Beside whatever the session does, as commands run."""
        self.run(self._told(verb, process, command, *args)).unwrap()

    def _told(self, verb: str, process: tuple[int, int], command: str, *args: Any) -> Operation:
        target = CommandTarget(verb, self.engine.usual.options, command, False)
        of, verb = self.engine.space, f"process.{verb}"
        return Operation(of, verb, args=(process, *args), target=target)

    # ---- one command

    def run(self, operation: Operation) -> Outcome[None]:
        asking = self._asking()
        with self._placed(operation, asking) as note:
            for _ in range(ATTEMPTS):
                command = self._sent_command(operation, asking, note, self._make_ready())
                try:
                    self._await_run(command.run)
                finally:
                    self.engine.beside.end(command.run)
                if not command.certainly_did_not_begin:
                    break
            return self._command_outcome(command, self._why_it_ended(command))

    def _asking(self) -> Asking | None:
        """The call of which a tool is the caller of this."""
        talk, core = self.engine.talk, self.engine.cell.core
        if talk is None or core is None or not talk.waits_here():
            return None
        return Asking(talk, core, talk.entry)

    @contextmanager
    def _placed(self, operation: Operation, asking: Asking | None) -> Iterator[Note | None]:
        self.engine.turn.require()
        if asking is not None:
            asking.require()
        with self.engine.beside.place(is_short=operation.verb.startswith("process.")):
            history = self.engine.kept.history
            source = operation.source(operation.target or self.engine.usual)
            of = None if asking is None else asking.entry
            note = history.begin(operation.verb, source, beside=True, of=of)
            try:
                with nullcontext() if asking is None else asking.running():
                    yield note
            except BaseException as error:
                history.fail(note, error)
                raise

    def _is_ready(self) -> bool:
        """Whether its interpreter has begun, or does with the call that runs."""
        core, contents = self.engine.cell.core, self.engine.contents
        if (
            core is None
            or not core.started
            or core.over
            or contents.is_new
            or self.engine.begins_files
        ):
            return False
        if self.engine.turn.is_taken:
            return core.calling or self.engine.cell.is_begun
        return self.engine.cell.is_begun and not core.unsettled

    def _make_ready(self) -> bool:
        """Whether the interpreter had ended."""
        restarted, attempts, turn = False, 0, self.engine.turn
        turn.require()
        while not self._is_ready():
            try:
                with turn.of_saves(), Surely(turn), turn:
                    outcome = self.engine.send(Operation(self.engine.space, "names"))
            except SessionBusy:
                time.sleep(PAUSE_SEC)
            else:
                restarted = restarted or outcome.restarted
                attempts = self._attempted(attempts, outcome)
            turn.require()
        return restarted

    def _attempted(self, attempts: int, outcome: Outcome[Any]) -> int:
        if attempts + 1 == ATTEMPTS:
            outcome.unwrap()
        return attempts + 1

    def _sent_command(
        self, operation: Operation, asking: Asking | None, note: Note | None, restarted: bool
    ) -> Command:
        target = operation.target
        assert target is not None and self.engine.cell.core is not None
        if self.engine.named is not None:
            self.engine.named.touch()
        streams = streams_of(target.options, echo=False)
        feed: Feed | None = None if streams is None else streams.feed
        if target.printed is not None:
            feed = target.printed.feeding(feed)
        order = pickle.dumps(
            (operation.verb, self.engine.cwd, operation.args, target.terms.cpu_ms), 5
        )
        core = self.engine.cell.core
        leaves = operation.verb == "bash"
        run = CommandRun(target, order, feed, leaves, asking)
        self.engine.beside.add(run)
        try:
            known = (run, streams, core, core.restarts, restarted)
            command = Command(operation, target, asking, note, *known)
            run.send(core, lambda: self.engine.turn.is_taken)
        except BaseException:
            self.engine.beside.end(run)
            raise
        return command

    def _await_run(self, run: CommandRun) -> None:
        try:
            while not run.step():
                _poll(run)
        except BaseException:  # Ctrl-C, or what a callback raised
            run.mute()
            run.cancel("interrupted")
            while not run.step():
                _poll(run)
            raise

    def _is_to_be_dead(self, command: Command, waits: bool) -> bool:
        """Whether that is to be asked again. Raises StopExec where the call of the tool that wants
        the command has ended.
        """
        asking, run = command.asking, command.run
        assert asking is not None
        if run.why != "call" and not (command.is_lost and asking.is_dead()):
            return command.is_lost and waits
        outcome = run.outcome("")
        outcome.status = "cancelled"
        run.tell(outcome, command.target.terms.policy)
        raise call_has_ended()

    # ---- its end

    def _why_it_ended(self, command: Command) -> End | None:
        """Of one whose interpreter has ended. Raises what is no Outcome."""
        run, core = command.run, command.core
        if command.asking is not None and command.asking.is_open:
            until = time.monotonic() + DEAD_SEC
            while self._is_to_be_dead(command, time.monotonic() < until):
                time.sleep(PAUSE_SEC)
            return None
        if run.is_stuck:
            self._restart_unanswered(core)
        if not command.is_lost:
            return None
        dead, until = (time.monotonic() + sec for sec in (DEAD_SEC, PATIENCE_SEC))
        while core.restarts == command.restarts and not core.over:
            if self._may_be_dead(core, dead):
                time.sleep(PAUSE_SEC)
                continue
            try:
                with Surely(self.engine.turn), self.engine.turn:
                    self.engine.send(Operation(self.engine.space, "names"))
                break  # it answers now, whichever it is
            except SessionBusy:
                if time.monotonic() >= until:
                    break
                time.sleep(PAUSE_SEC)
            except SandboxError:
                break  # the session has ended, as it will say
        return self._end_of_interpreter(command)

    def _may_be_dead(self, core: _core.Session, until: float) -> bool:
        """Whether it is to be known before a call finds out, which it would end during."""
        return not (self.engine.turn.is_taken or core.unsettled or time.monotonic() >= until)

    def _end_of_interpreter(self, command: Command) -> End | None:
        core = command.core
        if core.restarts == command.restarts and not core.over:
            return None
        try:
            found = core.last_end(command.restarts)
        except _core.Error as error:
            raise from_core(error) from None
        if found is None and self.engine.cell.closed:
            raise has_ended(self.engine.cell.closed, command.run.has_begun)
        return found

    def _restart_unanswered(self, core: _core.Session) -> None:
        """Nothing else ends what a process runs that does not answer. One that runs a call is left
        to the limits of that.
        """
        try:
            with Surely(self.engine.turn), self.engine.turn:
                core.restart()
                self.engine.note_end()
        except (SessionBusy, SandboxError):
            pass

    def _command_outcome(self, command: Command, ended: End | None) -> Outcome[None]:
        run, target, core = command.run, command.target, command.core
        if self.engine.named is not None:
            self.engine.named.touch()  # what it changed since it began may not be saved
        if command.streams is not None:
            command.streams.finish()
        pool = self.engine.cell.pool
        if ended is None or pool is None:
            outcome = run.outcome("" if pool is None else pool.enforcement)
        elif ended[0].status == "limit" and not ended[1]:
            outcome = outcome_of(target, ended[0], pool, (), {})  # what all that it runs has met
            run.complete(outcome)
        else:
            exit_code = measured(target, ended[0], pool).exit_code
            outcome = _killed(run.begun_outcome(pool.enforcement), exit_code, ended[1])
        outcome.worker_id = core.worker
        target.conclude(outcome)
        tell_of_its_end(outcome)
        outcome.restarted = self.engine.told(command.restarted) or (
            core.restarts != command.restarts and not core.over
        )
        self.engine.kept.history.end(command.note, outcome, 0)
        run.tell(outcome, target.terms.policy)
        return outcome


def _killed(outcome: Outcome[None], exit_code: int | None, during_call: bool) -> Outcome[None]:
    """Of one whose interpreter has ended, with that exit code, and the command with it."""
    message = "the command was killed: the session's interpreter has ended"
    if during_call:
        message += " during another call"
    elif exit_code is not None:
        message += f", with exit code {exit_code}"
    hint = "names are lost, files stay"
    hint = f"the Outcome of that call says why; {hint}" if during_call else hint
    outcome.status, outcome.signal = "died", int(SIGKILL)
    return outcome.fail(SandboxDied(message, hint=hint, signal=outcome.signal))


def _poll(run: CommandRun) -> None:
    poll = select.poll()
    for fd in run.descriptors:
        poll.register(fd, select.POLLIN)
    poll.poll(1000 * run.patience() + 1)
