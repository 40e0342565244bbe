# SPDX-License-Identifier: Apache-2.0
"""Outcome: what became of a call, and SandboxError, the base of the errors that have one. Values;
safe on any thread.

`status` is "returned" or "raised" where the cell replied (and so can be forged by what ran there);
"limit", "died", "cancelled" and "fault" are measured outside of it.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar, cast

from hutch._text import (
    MOST_TEXT,
    as_json,
    brief_repr,
    escape,
    escaped_ends,
    one_line,
    repr_to_cut,
    shortened,
)

R = TypeVar("R")
Status = Literal["returned", "raised", "limit", "died", "cancelled", "fault"]

_MOST_FOR_A_MODEL = 20_000  # characters
# By which a session shows a value in several forms.
_FORMS = ("mimebundle", "html", "svg", "png", "jpeg", "markdown", "latex", "json")

STAGES = ("queue", "environment", "worker", "send", "run", "receive")


class _Record:
    """Equality, repr and pickling by slots."""

    __slots__: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


class ErrorInfo(_Record):
    """An exception as data. `line`: in the user's own source, where known. `bases`: the names of
    the builtin classes that it is an instance of, nearest first, as the cell reports them.
    """

    __slots__ = ("type", "message", "traceback", "line", "hint", "bases")

    def __init__(
        self,
        type: str,
        message: str,
        traceback: str = "",
        line: int | None = None,
        hint: str = "",
        bases: tuple[str, ...] = (),
    ) -> None:
        self.type = type
        self.message = message
        self.traceback = traceback
        self.line = line
        self.hint = hint
        self.bases = bases

    @property
    def builtin(self) -> str:
        """The nearest builtin class of it, as "FileNotFoundError"; "" where there is none."""
        return self.bases[0] if self.bases else ""

    def is_a(self, kind: type[BaseException]) -> bool:
        """Whether it was an instance of a builtin exception class, as the cell reports it:
        `error.is_a(OSError)`. Raises TypeError for anything but a builtin exception class.
        """
        import builtins

        name = getattr(kind, "__name__", "")
        exception = isinstance(kind, type) and issubclass(kind, BaseException)
        if not exception or vars(builtins).get(name) is not kind:
            raise TypeError(f"is_a takes a builtin exception class such as OSError, not {kind!r}")
        return name in self.bases


class Usage(_Record):
    """What a call took. `source`: "warden" (measured outside) or "cell" (reported by it).

    A cell reports the CPU time of its process and of those that it waited for, and the peak of the
    largest of them; the audit log has what the warden measured.
    `enforcement`: how the limits are enforced on this host, "cgroup" or "watchdog"; "claimed" where
    the limit that ended the call is what the code said of itself, and no measurement.
    `suggested`: keywords with which the call may get further, where a limit ended it:
    `f.options(**usage.suggested)`.
    `background_cpu_sec`: of a session, the CPU time that its processes used since a call last said
    so, measured outside, without what calls report as their own: what ran between calls, and
    beside them in processes that they did not wait for. All of it is in the sum over the calls.
    `cpu_wait_sec`: how long it could have run and waited for a CPU because others had it, as Linux
    counts it: of the main thread, or, where it was killed, of all threads that still lived, added
    up, as far as the call had fewer CPUs than `cpus=`: else they wait for each other. 0 for a call
    of less than 5 ms, and with isolation="gvisor", whose kernel does not tell.
    """

    __slots__ = (
        "wall_sec",
        "cpu_sec",
        "peak_memory_bytes",
        "waited_sec",
        "enforcement",
        "source",
        "suggested",
        "background_cpu_sec",
        "cpu_wait_sec",
    )

    def __init__(
        self,
        wall_sec: float = 0.0,
        cpu_sec: float = 0.0,
        peak_memory_bytes: int = 0,
        waited_sec: float = 0.0,
        enforcement: str = "",
        source: str = "cell",
        suggested: dict[str, Any] | None = None,
        background_cpu_sec: float = 0.0,
        cpu_wait_sec: float = 0.0,
    ) -> None:
        self.wall_sec = wall_sec
        self.cpu_sec = cpu_sec
        self.peak_memory_bytes = peak_memory_bytes
        self.waited_sec = waited_sec
        self.enforcement = enforcement
        self.source = source
        self.suggested = {} if suggested is None else suggested
        self.background_cpu_sec = background_cpu_sec
        self.cpu_wait_sec = cpu_wait_sec


class NetworkRecord(dict[str, Any]):
    """What the proxy decided about one host and port, and what went there; also as attributes.

    `host`, `port`, `allowed`, `bytes` (`bytes_sent` by the call, `bytes_received`), `count`: the
    number of such connections. For a refused one, `reason`, and `suggestion`: the narrowest entry
    of `allow_network` that would have allowed it, "" if there is none. `lost`: the network itself
    failed, through no fault of the call; `reason` says how.
    """

    __module__ = "hutch"

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class SandboxError(Exception):
    """The base of all errors of Hutch, except those about bad arguments to Hutch itself."""

    __module__ = "hutch"

    def __init__(
        self,
        message: str = "",
        *,
        hint: str = "",
        outcome: Outcome[Any] | None = None,
        **details: Any,
    ) -> None:
        Exception.__init__(self, message)
        self.message = message
        self.hint = hint
        self.outcome = outcome
        self.__dict__.update(details)

    def __str__(self) -> str:
        # A cell's text must not control the terminal.
        return escape(f"{self.message}\n  hint: {self.hint}" if self.hint else self.message)

    def __reduce__(self) -> Any:
        return rebuilt, (type(self), dict(self.__dict__))


def rebuilt(kind: type[SandboxError], state: dict[str, Any]) -> SandboxError:
    error = kind(state["message"])
    error.__dict__.update(state)
    return error


class Outcome(_Record, Generic[R]):
    """What became of one call. `unwrap()` gives the value, or raises what `f()` would raise.

        outcome = hutch.run("print(1 / 0)")
        outcome.status, outcome.error.type      # "raised", "ZeroDivisionError"

    `status`: "returned" (`ok`) with `value`; "raised" with `error`, an ErrorInfo; "limit" with the
    name of the limit: "time", "cpu_time", "memory", "pids", "disk" or "result"; "died" with the
    `signal` or `exit_code` of its process; "cancelled"; "fault": Hutch or the host failed. `error`
    is None where there is nothing to say of the code, and so is what belongs to another status.

    `stdout`, `stderr`: text, up to `output_mb`; `stdout_size`, `stderr_size`: bytes that were
    printed; `stdout_truncated`, `stderr_truncated`: whether some were not kept. `display`: what a
    session's code showed, each as a dict from a type of media to its content.

    `usage`: what it took, a Usage. `may_have_run`: whether any of the code may have run. `call_id`,
    `worker_id`: its names in the audit log and in the agent's log.

    `timings`: seconds by this process's clock, which together are what the caller waited for it:

    - "queue": until a cell was free. For a submitted or awaited call, the wait for a thread, too.
    - "environment": until its pool was known: connecting, starting the agent, building.
    - "worker": for a worker to start; not in the two above.
    - "send": pickling the function and the arguments, placing large ones.
    - "run": from sending it until the reply came, or until it was clear that none would.
    - "receive": taking the result, decoding and checking it; after a limit, the measurements.

    All are 0.0 where nothing was sent. Items of `map` that share a cell have the times of the
    whole chunk. In a fault, the way to the cell and the time in it count as one stage.

    `network`: the hosts that it reached and was refused, as the proxy recorded; see
    `NetworkRecord`. `network_lost`: why a fault of Hutch left it without a network for some of the
    time; "" if none did. A call that failed then is a "fault"; one that returned may have returned
    less.

    `restarted`: of a session, whether its interpreter ended, in this call or since the one before:
    its names are lost. `rolled_back`: whether they were put back as they were before the call; that
    takes checkpoints, which there are none of yet, so it is False.

    `files`: the content of those that `fetch=` of a program named, by path.
    """

    __slots__ = (
        "status",
        "value",
        "error",
        "limit",
        "signal",
        "exit_code",
        "usage",
        "timings",
        "network",
        "stdout",
        "stderr",
        "stdout_size",
        "stderr_size",
        "stdout_truncated",
        "stderr_truncated",
        "display",
        "call_id",
        "worker_id",
        "may_have_run",
        "restarted",
        "rolled_back",
        "files",
        "_failure",
    )

    def __init__(
        self,
        status: Status,
        value: R | None = None,
        *,
        error: ErrorInfo | None = None,
        limit: str | None = None,
        signal: int | None = None,
        exit_code: int | None = None,
        usage: Usage | None = None,
        timings: dict[str, float] | None = None,
        stdout: str = "",
        stderr: str = "",
        stdout_size: int = 0,
        stderr_size: int = 0,
        stdout_truncated: bool = False,
        stderr_truncated: bool = False,
        call_id: str = "",
        worker_id: str = "",
        may_have_run: bool = True,
    ) -> None:
        self.status: Status = status
        self.value = value
        self.error = error
        self.limit = limit
        self.signal = signal
        self.exit_code = exit_code
        self.usage = Usage() if usage is None else usage
        self.timings = dict.fromkeys(STAGES, 0.0) if timings is None else timings
        self.network: list[NetworkRecord] = []
        self.stdout = stdout
        self.stderr = stderr
        self.stdout_size = stdout_size
        self.stderr_size = stderr_size
        self.stdout_truncated = stdout_truncated
        self.stderr_truncated = stderr_truncated
        self.display: list[dict[str, Any]] = []
        self.call_id = call_id
        self.worker_id = worker_id
        self.may_have_run = may_have_run
        self.restarted = False
        self.rolled_back = False
        self.files: dict[str, bytes] = {}
        self._failure: SandboxError | None = None

    def copy(self) -> Outcome[R]:
        """Another that is equal, and shares nothing that can be changed."""
        same: Outcome[R] = Outcome.__new__(Outcome)
        for name in Outcome.__slots__:
            setattr(same, name, getattr(self, name))
        same.usage = Usage(*[getattr(self.usage, name) for name in Usage.__slots__])
        same.usage.suggested = dict(self.usage.suggested)
        same.timings = dict(self.timings)
        same.network, same.display = list(self.network), list(self.display)
        same.files = dict(self.files)
        return same

    @property
    def ok(self) -> bool:
        """Whether the code returned; of a program, whether its exit code was 0."""
        return self.status == "returned"

    @property
    def safe_to_retry(self) -> bool:
        """Whether none of the code can have run."""
        return not self.may_have_run

    @property
    def network_lost(self) -> str:
        """Why it had no network for some of the time, by a fault of Hutch; "" if it had."""
        return next((record["reason"] for record in self.network if record.get("lost")), "")

    @property
    def text(self) -> str:
        """What a language model should see after its code ran, as a terminal shows it: stdout,
        stderr, what was displayed as text, the repr of the value, unless that is None, and of a
        failure the traceback or message, and the hint; a note where the interpreter was restarted.
        "" where there is none of it.

        What would control a terminal is escaped. At most 20,000 characters: of a longer text the
        middle is left out, and a line there says how many characters that is.

            reply = session.exec(code).text     # "Traceback …\\nNameError: …\\nhint: …"
        """
        parts = [self._printed("stdout"), self._printed("stderr")]
        displayed = [form["text/plain"] for form in self.display if "text/plain" in form]
        displayed = [one for one in displayed if type(one) is str]
        parts += displayed
        missing = 0
        if self.value is not None and not self._is_displayed():
            value, missing = repr_to_cut(self.value, _MOST_FOR_A_MODEL)
            parts.append(value)
        parts += [*self._failed_by(None), *self._told_of_restart()]
        text = "\n".join(part.rstrip("\n") for part in parts if part)
        return escaped_ends(text, _MOST_FOR_A_MODEL, missing)

    def _printed(self, name: str) -> str:
        """`stdout` or `stderr`, which are bytes where a command was asked for them."""
        found: Any = getattr(self, name)
        text: str = found if isinstance(found, str) else found.decode("utf-8", "replace")
        if not getattr(self, f"{name}_truncated"):
            return text
        size = getattr(self, f"{name}_size")
        return f"{text}\n… (of {size:,} bytes of {name}, the rest was not kept) …"

    def _is_displayed(self) -> bool:
        """Whether a session has shown the value in its forms, of which one is text."""
        kind = type(self.value)
        rich = any(hasattr(kind, f"_repr_{form}_") for form in _FORMS)
        return rich and bool(self.display) and "text/plain" in self.display[-1]

    def unwrap(self) -> R:
        """The value; where there is none, raises what calling the function would have raised."""
        if self.status == "returned":
            return cast(R, self.value)
        raise self.exception()

    def exception(self) -> SandboxError:
        """What `unwrap` raises where the call did not return. Each time another one."""
        failure = self._failure or SandboxError(f"the call ended as {self.status!r}")
        return with_outcome(failure, self)

    def fail(self, error: SandboxError) -> Outcome[R]:
        """Sets the error that `unwrap` raises. Returns this Outcome."""
        # What it has of it refers to no Outcome, which would keep both until the collector runs.
        self._failure = with_outcome(error, None)
        return self

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = [name for name in self.__slots__ if name != "_failure"]
        return all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None

    def to_dict(self) -> dict[str, Any]:
        """All its fields, for JSON; a value that JSON cannot hold is there as its repr, pictures in
        `display` and the content of `files` as base64.
        """
        import base64

        from hutch._display import bundles_as_json

        fields: dict[str, Any] = {
            "status": self.status,
            "ok": self.ok,
            "value": as_json(self.value),
        }
        for name in self.__slots__[2:-1]:
            found = getattr(self, name)
            if name == "network":
                found = [dict(record) for record in found]
            if name == "display":
                found = bundles_as_json(found)
            if name == "files":
                found = {path: base64.b64encode(x).decode() for path, x in found.items()}
            fields[name] = as_json(found.__getstate__() if isinstance(found, _Record) else found)
        fields["safe_to_retry"] = self.safe_to_retry
        fields["network_lost"] = self.network_lost
        return fields

    def __repr__(self) -> str:
        parts: list[str] = [self.status]
        if self.ok:
            parts.append(f"value={shortened(brief_repr(self.value), 80)}")
        elif self.limit:
            parts.append(f"limit={self.limit!r}")
        elif self.status == "raised" and self.error is not None:
            said = f"{self.error.type[:MOST_TEXT]}: {self.error.message[:MOST_TEXT]}"
            parts.append(shortened(one_line(said), 120))
        elif self.signal is not None:
            parts.append(f"signal={self.signal}")
        elif self.exit_code is not None:
            parts.append(f"exit_code={self.exit_code}")
        if self.network_lost:
            parts.append("network lost")
        parts.append(f"{self.usage.wall_sec:.3g} s")
        return escape(f"<Outcome {', '.join(parts)}>")

    def __str__(self) -> str:
        lines = [repr(self)[1:-1]]
        lines += [*self._failed_by(MOST_TEXT), *self._told_of_restart()]
        for name in ("stdout", "stderr"):
            text = getattr(self, name)
            if text:
                cut = " (shortened)" if getattr(self, f"{name}_truncated") else ""
                lines.append(f"{name}{cut}:\n{shortened(text.rstrip(), MOST_TEXT)}")
        return escape("\n".join(lines))

    def _failed_by(self, most: int | None) -> list[str]:
        """Its failure, and the traceback and hint of what was raised, each of `most` characters."""
        failure = None if self.status in ("returned", "raised") else self._failure
        lines = [] if failure is None else [str(failure)]
        error = self.error
        if error is not None and (error.traceback or failure is None):
            told = (error.traceback or error.message).rstrip()
            lines.append(told if most is None else shortened(told, most))
            if error.hint and (failure is None or error.hint != failure.hint):
                hint = error.hint if most is None else shortened(error.hint, most)
                lines.append(f"hint: {hint}")
        return lines

    def _told_of_restart(self) -> list[str]:
        if not self.restarted or (self.error and "names are lost" in self.error.hint):
            return []
        return ["note: the interpreter was restarted: its names are lost, files stay"]

    def _repr_html_(self) -> str:
        from hutch._display import card

        return card(str(self), self.ok, self.display)


def with_outcome(error: SandboxError, outcome: Outcome[Any] | None) -> SandboxError:
    """Another error that is the same, as are its causes, but for their Outcome."""
    make, arguments = error.__reduce__()
    given = [{**one, "outcome": outcome} if isinstance(one, dict) else one for one in arguments]
    made: SandboxError = make(*given)
    cause = error.__cause__
    if isinstance(cause, SandboxError):
        made.__cause__ = with_outcome(cause, outcome)
    elif made.__cause__ is None and cause is not None:
        made.__cause__ = cause
    return made
