# SPDX-License-Identifier: Apache-2.0
"""One command of a session: what becomes of it. What it replies comes from the sandbox: it may be
anything.
"""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING, Any

from hutch import _core
from hutch._background import not_said
from hutch._calls.printed import Printed
from hutch._calls.session_call import SessionTarget
from hutch._errors import CommandError, SerializationError
from hutch._not_python import LISTED_BY_PYTHON
from hutch._outcome import ErrorInfo, Outcome
from hutch._text import MOST_TEXT, one_line, shortened

if TYPE_CHECKING:
    from hutch._options.options import Options

_FAR = 1 << 63  # the size of a file is below
_OF_SIGNAL = 128  # an exit code above it is that of a signal
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127  # exit codes
_INSTALLED_OUTSIDE = (
    "nothing is installed from inside: name the package outside, in dependencies=[…], or by "
    "Session.install(…)"
)
_NO_NETWORK_PROGRAM = (
    "the sandbox has no such program: where allow_network= opens a host, urllib.request of Python "
    "reaches it"
)
# What lists packages.
_LISTS = re.compile(r"\b(?:pip3?|conda|mamba) +(?:list|freeze|show)\b")
_JAVASCRIPT = 'JavaScript is run by Session.node(…) and language="javascript", not from a shell'
_INSTEAD = {
    **dict.fromkeys(
        ("pip", "pip3", "uv", "pipx", "conda", "mamba", "apt", "apt-get"), _INSTALLED_OUTSIDE
    ),
    **dict.fromkeys(("curl", "wget", "ssh", "scp", "ping"), _NO_NETWORK_PROGRAM),
    "node": _JAVASCRIPT,
    **dict.fromkeys(
        ("npm", "npx", "yarn", "pnpm"),
        f"{_JAVASCRIPT}; packages of npm come by node_dependencies=[…]",
    ),
    "sudo": "there is no other user inside, and no sudo",
}
# Of the last line of a program that is there, but lacks a part.
_LACKS = (
    (re.compile(r": No module named '?(?:pip|ensurepip|uv|conda)\b"), _INSTALLED_OUTSIDE),
    (
        re.compile(r"\bremote-\w+' is not a git command|remote helper for '"),
        "git speaks to no network inside: clone outside, and give the session the files by files= "
        "or s.files.upload()",
    ),
)
_MISSING = re.compile(r"(?:^|: )([\w.+-]+): (?:command )?not found$")


class CommandTarget(SessionTarget):
    """One command, with its limits. `printed`: what it prints, as bytes; None: nobody asked."""

    def __init__(self, verb: str, options: Options, what: Any, as_bytes: bool) -> None:
        super().__init__(options)
        self.name = "the command"
        self._verb = verb
        self._what = what
        self.printed = Printed(self.terms.output_bytes) if as_bytes else None
        self.conclude = self._conclude

    def _conclude(self, outcome: Outcome[Any]) -> None:
        """The reply is its exit code."""
        if self._verb == "wait":
            _take_output(outcome, self.terms.output_bytes)
        error = _error_of(outcome, self._what) if outcome.ok else None
        if self.printed is not None:
            streams: Any = outcome
            streams.stdout, streams.stderr = (bytes(kept) for kept in self.printed.kept)
            outcome.stdout_truncated, outcome.stderr_truncated = map(self.printed.truncated, (0, 1))
        if error is None:
            return
        outcome.status = "raised"
        outcome.error = ErrorInfo(type(error).__name__, error.message, hint=error.hint)
        if isinstance(error, CommandError):
            error.error = outcome.error
        outcome.fail(error)

    def with_keywords(self, keywords: str) -> str:
        said = super().with_keywords(keywords)
        return said.replace("exec(", f"{self._verb}(", 1)


def _take_output(outcome: Outcome[Any], most: int) -> None:
    """Of one that has ended, whose reply has it, up to `most` bytes of each stream. What else has
    printed meanwhile is not its.
    """
    if not outcome.ok:
        return
    reply = outcome.value
    if type(reply) is not list or [type(one) for one in reply] != [int, bytes, int, bytes, int]:
        return
    code, out, out_size, err, err_size = reply
    for data, size in ((out, out_size), (err, err_size)):
        if len(data) > most or not len(data) <= size < _FAR:
            return  # and so it has no exit code
    outcome.value, outcome.stdout_size, outcome.stderr_size = code, out_size, err_size
    outcome.stdout, outcome.stderr = map(_core.printed_text, (out, err))
    outcome.stdout_truncated = outcome.stdout_size > len(out)
    outcome.stderr_truncated = outcome.stderr_size > len(err)


def _error_of(outcome: Outcome[Any], what: Any) -> CommandError | SerializationError | None:
    """Takes the exit code from the reply. None: it is 0."""
    code, outcome.value = outcome.value, None
    if type(code) is not int or not 0 <= code < 256:
        return not_said()
    outcome.exit_code = code
    if code == 0:
        return None
    said = next((line for line in reversed(outcome.stderr.splitlines()) if line.strip()), "")
    name = os.fsdecode(what[0]) if isinstance(what, list) else what
    message = f"{shortened(one_line(name), 80)} ended with exit code {code}"
    message += f" ({_signal(code)})" if _signal(code) else ""
    message += f": {shortened(one_line(said), MOST_TEXT)}" if said else ""
    words = " ".join(map(os.fsdecode, what)) if isinstance(what, list) else what
    return CommandError(message, hint=_hint(code, said, words), exit_code=code)


def _hint(code: int, said: str, words: str) -> str:
    """Of an exit code, the last line of stderr, and the command."""
    if code == _NOT_EXECUTABLE:
        return "it is there, but cannot be executed"
    if _LISTS.search(words) and re.search(r"not found$|No module named '?pip\b", said):
        return LISTED_BY_PYTHON
    if code != _NOT_FOUND:
        return next((hint for pattern, hint in _LACKS if pattern.search(said)), "")
    if not said.endswith((" not found", ": No such file or directory")):
        return ""  # 127 is also what bash ends with where set -u finds a variable unset
    missing = _MISSING.search(said)
    usual = "the sandbox has no such program: a package of dependencies= may bring it"
    return _INSTEAD.get(missing[1], usual) if missing else usual


def _signal(code: int) -> str:
    try:
        return signal.Signals(code - _OF_SIGNAL).name
    except ValueError:
        return ""
