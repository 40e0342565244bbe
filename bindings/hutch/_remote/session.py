# SPDX-License-Identifier: Apache-2.0
"""A session on a server of `hutch serve`. Safe on any thread."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hutch import _strict_json
from hutch._errors import AgentUnavailable, SessionNotFound
from hutch._remote import values
from hutch._remote.answers import last_outcome_of, object_of, outcome_of

if TYPE_CHECKING:
    from hutch._outcome import Outcome
    from hutch._remote.servers import Servers

_ID = re.compile(r"[A-Za-z0-9_-]{1,200}")  # it stands in paths
Printed = Callable[[str], object]


class _CallbackRaised(Exception):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class RemoteSession:
    """A session of a Client: names and files that live on from one call to the next, as in
    `hutch.Session`. It stays on the server that opened it, until it is closed, or unused for
    `idle_sec`. What travels is data: a value that is none (a function, a DataFrame) is None in the
    Outcome, and shown in its `display`.

        with client.Session() as s:
            s.exec("x = 20")
            assert s.exec("x + 1").value == 21
    """

    def __init__(self, servers: Servers, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self._servers = servers
        self._url, found = servers.ask_least_loaded("/v1/sessions", content, object_of, set())
        with _readable():
            self.id = _id_in(found)
        self.files = RemoteFiles(self)

    def exec(
        self,
        source: str,
        *,
        timeout_sec: float | None = None,
        on_stdout: Printed | None = None,
        on_stderr: Printed | None = None,
    ) -> Outcome[Any]:
        """Runs the text. The Outcome's value is that of its last expression. `timeout_sec=None`:
        what the session was opened with. `on_stdout`, `on_stderr`: get what it prints, as it does;
        what they raise ends it. Raises SessionBusy while another call runs, SessionNotFound once
        the session has ended, AgentUnavailable with `.may_have_run` where the server is lost.
        """
        return self._run("exec", {"code": source}, timeout_sec, on_stdout, on_stderr)

    def bash(
        self,
        text: str,
        *,
        input: str = "",
        timeout_sec: float | None = None,
        on_stdout: Printed | None = None,
        on_stderr: Printed | None = None,
    ) -> Outcome[None]:
        """Runs the text as `bash -c` does. The Outcome has `stdout`, `stderr`, `exit_code`."""
        body = {"code": text, "stdin": input}
        return self._run("bash", body, timeout_sec, on_stdout, on_stderr)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a name, or `default`. Raises ValueError for one that is no data."""
        found = self._ask("get", {"name": name})
        if found.get("found") is not True:
            return default
        with _readable():
            return values.from_json(found.get("value"))

    def set(self, name: str, value: Any) -> None:
        """Gives a name a value. Raises ValueError for one that is no data."""
        try:
            given = values.to_json(value)
        except values.NotData as error:
            raise ValueError(f"the value does not travel over HTTP: {error}") from None
        self._ask("set", {"name": name, "value": given})

    def __getitem__(self, name: str) -> Any:
        missing = object()
        value = self.get(name, missing)
        if value is missing:
            raise KeyError(name)
        return value

    def __setitem__(self, name: str, value: Any) -> None:
        self.set(name, value)

    def interrupt(self) -> None:
        """Has the code that runs raise KeyboardInterrupt, and kills the commands that run."""
        self._ask("interrupt", {})

    def reset(self, files: bool = False) -> None:
        """Forgets all names; with `files`, those, too."""
        self._ask("reset", {"files": files})

    def info(self) -> dict[str, Any]:
        """`started`, `restarts`, `execs`, `cwd`, `restartable`, `lost`."""
        return self._ask("info", {})

    @property
    def lost(self) -> list[str]:
        """The names that were lost at the last restart."""
        return _texts(self.info().get("lost"))

    def close(self) -> None:
        """Ends the session with all that it has. Nothing happens the second time."""
        try:
            self._ask("close", {})
        except SessionNotFound:
            pass

    def __enter__(self) -> RemoteSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<hutch.Client.Session {self.id} on {self._url}>"

    def _ask(self, verb: str, body: Mapping[str, Any]) -> dict[str, Any]:
        path, content = f"/v1/sessions/{self.id}/{verb}", json.dumps(body).encode()
        found: dict[str, Any] = self._servers.ask_one(self._url, path, content, object_of)
        return found

    def _run(
        self,
        verb: str,
        body: dict[str, Any],
        timeout_sec: float | None,
        on_stdout: Printed | None,
        on_stderr: Printed | None,
    ) -> Outcome[Any]:
        if timeout_sec is not None:
            body["timeout_sec"] = timeout_sec
        callbacks = {"stdout": on_stdout, "stderr": on_stderr}
        path = f"/v1/sessions/{self.id}/{verb}"

        def tell(line: bytes) -> bool:
            found = _strict_json.parsed(line)
            if type(found.get("left_out")) is int:
                found["stdout"] = f"\n[{found['left_out']} characters came too fast]\n"
            for name, text in found.items():
                callback = callbacks.get(name)
                if callback is not None and type(text) is str:
                    try:
                        callback(text)
                    except BaseException as error:
                        raise _CallbackRaised(error) from None
            return "outcome" not in found

        is_heard = on_stdout is not None or on_stderr is not None
        content = json.dumps({**body, "stream": is_heard}).encode()
        try:
            outcome: Outcome[Any] = self._servers.ask_one(
                self._url,
                path,
                content,
                last_outcome_of if is_heard else outcome_of,
                tell if is_heard else None,
            )
        except _CallbackRaised as raised:
            raise raised.error from None
        with _readable():
            _decode(outcome)
        return outcome


@contextmanager
def _readable() -> Iterator[None]:
    """What is none of its values is the server's fault."""
    try:
        yield
    except ValueError as error:
        text = f"the server's answer cannot be read: {error}"
        raise AgentUnavailable(text, may_have_run=True) from None


def _id_in(found: Mapping[str, Any]) -> str:
    id = found.get("id")
    if type(id) is not str or _ID.fullmatch(id) is None:
        raise ValueError("it has no id of a session")
    return id


def _texts(found: Any) -> list[str]:
    return [one for one in found if type(one) is str] if type(found) is list else []


def _decode(outcome: Outcome[Any]) -> None:
    """Its value, and pictures. Raises ValueError."""
    outcome.value = values.from_json(outcome.value)
    for forms in outcome.display:
        for kind, form in forms.items():
            if kind.startswith("image/") and kind != "image/svg+xml" and type(form) is str:
                forms[kind] = base64.b64decode(form)


class RemoteFiles:
    """The files of a session of a Client. Errors are those of the system, as FileNotFoundError."""

    def __init__(self, session: RemoteSession) -> None:
        self._session = session

    def write(self, path: str, content: str | bytes) -> None:
        """Makes directories above it, if need be."""
        data = content.encode() if isinstance(content, str) else bytes(content)
        self._ask({"write": {path: base64.b64encode(data).decode()}})

    def read(self, path: str, encoding: str = "utf-8") -> str:
        return self.read_bytes(path).decode(encoding)

    def read_bytes(self, path: str) -> bytes:
        found = self._ask({"read": [path]}).get("files")
        with _readable():
            content = found.get(path) if type(found) is dict else None
            if type(content) is not str:
                raise ValueError("it has no such file")
            return base64.b64decode(content, validate=True)

    def list(self, path: str = ".") -> list[str]:
        """The names in a directory."""
        return _texts(self._ask({"list": path}).get("names"))

    def delete(self, path: str) -> None:
        """A file, or a directory with all that is in it."""
        self._ask({"delete": [path]})

    def _ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._session._ask("files", body)
