# SPDX-License-Identifier: Apache-2.0
"""What Hutch raises. Every class can be pickled; every one has `.hint` (what to do, or "") and
`.outcome` (where the call got far enough to have one).

    SandboxError
    ├── SandboxExecutionError             the function raised; .is_a, .builtin; also of the
    │                                     builtin type raised, if that is of a closed list
    │   └── CommandError                  a command of a session ended with .exit_code, not 0
    ├── LimitExceeded                     .limit, .allowed, .used
    │   ├── SandboxTimeoutError           also TimeoutError
    │   └── SandboxMemoryError            also MemoryError
    ├── KeyValueLimit                     .limit, .allowed, .used: of Session.kv
    ├── StorageError                      what is kept cannot be read, or not be written
    ├── SandboxDied                       .signal, or .exit_code
    ├── SandboxCancelled                  also concurrent.futures.CancelledError (module _cancelled)
    ├── SerializationError                .path, .type_name; also TypeError
    ├── DependencyInstallError            .log, .requirement
    │   └── RequirementError              a requirement refused unread; also ValueError
    ├── NetworkDenied                     .host, .port, .pattern
    └── SandboxStartupError               .may_have_run, .safe_to_retry
        ├── SandboxBusy                   .queued, .capacity, .waited_sec, .sessions
        ├── AgentUnavailable              also ConnectionError
        └── PlatformNotSupportedError
            └── PodmanNotInstalledError

Which builtin type an error from a cell is also an instance of is looked up in a closed list: the
code under test does not choose which `except` of its host fires. SandboxError itself stands in
`_outcome`, beside the Outcome that it refers to. Values; safe on any thread.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from hutch._outcome import (
    ErrorInfo,
    SandboxError as SandboxError,
    rebuilt,
)
from hutch._text import escape

if TYPE_CHECKING:
    from collections.abc import Sequence


class SandboxExecutionError(SandboxError):
    """The function raised. `error`: what the cell reported; so forgeable by what ran there."""

    error: ErrorInfo

    @property
    def error_type(self) -> str:
        """The name of the type that was raised, as the cell reports it."""
        return self.error.type

    @property
    def traceback_str(self) -> str:
        """Its traceback, with lines of your own source, as the cell reports it."""
        return self.error.traceback

    @property
    def builtin(self) -> str:
        """The nearest builtin class of what was raised, as "FileNotFoundError"; see `is_a`."""
        return self.error.builtin

    def is_a(self, kind: type[BaseException]) -> bool:
        """Whether what was raised inside was an instance of that builtin exception class:

            except hutch.SandboxExecutionError as error:
                if error.is_a(FileNotFoundError): ...

        The cell reports this and may lie, so no `except` of the host depends on it. Raises
        TypeError for anything but a builtin exception class.
        """
        return self.error.is_a(kind)

    def __reduce__(self) -> Any:
        return _rebuilt_execution, (dict(self.__dict__),)


class CommandError(SandboxExecutionError):
    """A command of a session ended with an exit code other than 0: `exit_code`."""

    exit_code: int = 1

    def __reduce__(self) -> Any:
        return rebuilt, (type(self), dict(self.__dict__))


class LimitExceeded(SandboxError):
    """A limit ended the call. `limit`: its name; `allowed`, `used`: in the unit of the keyword."""

    limit: str = ""
    allowed: float | None = None
    used: float | None = None


class SandboxTimeoutError(LimitExceeded, TimeoutError):
    """The call took longer than `timeout_sec`."""


class SandboxMemoryError(LimitExceeded, MemoryError):
    """The call needed more than `memory_mb`."""


class KeyValueLimit(SandboxError):
    """What `Session.kv` does not take. `limit`: "key_bytes", "value_bytes", "keys", "total_bytes",
    or of code inside "rate"; `allowed`, `used`: in bytes, keys, or requests a second.
    """

    limit: str = ""
    allowed: int = 0
    used: int | None = None


class StorageError(SandboxError):
    """A Storage cannot be used: it is not the caller's alone, is damaged, or is full."""


class SnapshotError(SandboxError, ValueError):
    """A snapshot that cannot be restored: it is damaged or of a newer Hutch, of another Python, or
    needs what the session does not have.
    """


class SandboxDied(SandboxError):
    """The process ended without a reply: killed by `signal`, or of itself with `exit_code`."""

    signal: int | None = None
    exit_code: int | None = None


class SerializationError(SandboxError, TypeError):
    """A value that cannot be sent or returned. `path`: where it is, as `result["models"][2]`."""

    path: str = ""
    type_name: str = ""


class AnnotationWarning(UserWarning):
    """A function returned plain data that does not match its return annotation; it was returned
    unchanged. Once for each function and place in its result; with `check_result=True` an error.
    """


class DependencyInstallError(SandboxError):
    """An environment could not be built. `log`: what the installer said, shortened."""

    log: str = ""
    requirement: str | None = None


class RequirementError(DependencyInstallError, ValueError):
    """A requirement that is refused for its text, before anything is downloaded."""


class NetworkDenied(SandboxError):
    """The call failed after it had been refused a host: `host`, `port`; `pattern`: the entry of
    `allow_network` that would have allowed it. These come from the proxy's record, not from the
    cell; what the code raised is in `.outcome.error`.
    """

    host: str = ""
    port: int = 0
    pattern: str = ""


class SandboxStartupError(SandboxError):
    """Hutch failed, not the function. `may_have_run`: whether user code may have been started."""

    may_have_run: bool = False

    @property
    def safe_to_retry(self) -> bool:
        """Whether the call certainly did not run."""
        return not self.may_have_run


class SandboxBusy(SandboxStartupError):
    """No cell came free within `queue_sec`, or the queue is full; or there are as many sessions
    (`sessions`) as there may be (`capacity`), for which nobody waits.
    """

    queued: int | None = None
    capacity: int | None = None
    waited_sec: float | None = None
    sessions: int | None = None


class SessionBusy(SandboxStartupError):
    """The session runs another call; this one certainly did not run. Or somebody else holds the
    session of that id: `holder` has the `pid` of the process, and `since` when (time.time()).
    """

    holder: dict[str, Any] | None = None


class SessionNotFound(SandboxStartupError):
    """There is no session of that id."""


class AgentUnavailable(SandboxStartupError, ConnectionError):
    """The agent does not answer, or went away."""


class PlatformNotSupportedError(SandboxStartupError):
    """This host lacks something; the message names it and the hint has the command."""


class PodmanNotInstalledError(PlatformNotSupportedError):
    """There is no Podman on this host."""


class RemoteTraceback(Exception):
    """The cause of a SandboxExecutionError: the traceback inside, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{escape(self.text.rstrip())}\n"""'


_ROOTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
ALLOWED: dict[str, type[Exception]] = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, _ROOTS) and kind.__name__ == name
}
_MOST_BASES = 32
_execution_classes: dict[str, type[SandboxExecutionError]] = {}


def builtin_names(info: Any) -> tuple[str, ...]:
    """The names of builtin exception classes among the bases that a cell reports of an error."""
    if type(info) is not list:
        return ()
    known = vars(builtins)
    return tuple(
        name
        for name in info[:_MOST_BASES]
        if type(name) is str
        and isinstance(known.get(name), type)
        and issubclass(known[name], BaseException)
    )


def execution_error_class(bases: Sequence[str]) -> type[SandboxExecutionError]:
    """The class for an error with these builtin bases, nearest first, as the cell reports them."""
    name = next((name for name in bases if name in ALLOWED), "")
    if not name:
        return SandboxExecutionError
    if name not in _execution_classes:
        members: dict[str, Any] = {
            "__module__": "hutch",
            "__doc__": f"The function raised a {name}.",
        }
        if issubclass(ALLOWED[name], SyntaxError):
            members["msg"] = property(str)  # what is printed of a SyntaxError
        _execution_classes[name] = type(
            "SandboxExecutionError", (SandboxExecutionError, ALLOWED[name]), members
        )
    return _execution_classes[name]


def execution_error(error: ErrorInfo) -> SandboxExecutionError:
    message = f"{error.type}: {error.message}" if error.message else error.type
    raised = execution_error_class(error.bases)(message, hint=error.hint, error=error)
    if error.traceback:
        raised.__cause__ = RemoteTraceback(error.traceback)
    return raised


def _rebuilt_execution(state: dict[str, Any]) -> SandboxError:
    info: ErrorInfo | None = state.get("error")
    error = rebuilt(execution_error_class(info.bases if info else ()), state)
    if info and info.traceback:
        error.__cause__ = RemoteTraceback(info.traceback)
    return error


_EXPORTED = (
    SandboxExecutionError,
    CommandError,
    LimitExceeded,
    SandboxTimeoutError,
    SandboxMemoryError,
    KeyValueLimit,
    StorageError,
    SnapshotError,
    SandboxDied,
    SerializationError,
    DependencyInstallError,
    RequirementError,
    NetworkDenied,
    SandboxStartupError,
    SandboxBusy,
    AgentUnavailable,
    PlatformNotSupportedError,
    PodmanNotInstalledError,
    RemoteTraceback,
    AnnotationWarning,
)
for _kind in _EXPORTED:
    _kind.__module__ = "hutch"  # what tracebacks show, and where users import them from
