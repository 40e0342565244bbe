# SPDX-License-Identifier: Apache-2.0
"""The server's log: bounded lines, few of a kind, and nothing of what is sent."""

from __future__ import annotations

import io
import logging
import logging.config
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from hutch._errors import SandboxStartupError
from hutch.serve import log

SENT = "\x1b[31mwhat was sent\n" * 1000


class Rig:
    def __init__(self) -> None:
        self.now = 0.0
        self.said = io.StringIO()
        handler = logging.StreamHandler(self.said)
        handler.addFilter(log.Sparse(lambda: self.now))
        self.logger = logging.Logger("any")
        self.logger.addHandler(handler)

    @property
    def lines(self) -> list[str]:
        return self.said.getvalue().splitlines()


def test_of_many_lines_of_a_kind_few_are_there_with_how_many_there_were() -> None:
    rig = Rig()
    for _ in range(3):
        for _ in range(1000):
            rig.logger.warning("Invalid HTTP request received.")
        rig.logger.warning("another")
        rig.now += 20
    assert rig.lines == [
        "Invalid HTTP request received.",
        "another",
        "Invalid HTTP request received. (999 more like this one were left out)",
        "another",
        "Invalid HTTP request received. (999 more like this one were left out)",
        "another",
    ]


def test_an_exception_is_one_line_that_says_where() -> None:
    rig = Rig()

    def fails() -> None:
        raise KeyError(SENT)

    for _ in range(100):
        try:
            fails()
        except KeyError as error:
            rig.logger.error("Exception in ASGI application\n", exc_info=error)
    (line,) = rig.lines
    assert line.startswith("Exception in ASGI application: KeyError in test_serve_log.py:")
    assert " fails, " in line and "sent" not in line


def test_what_asyncio_shows_of_a_failure_makes_no_lines_and_is_in_none() -> None:
    rig = Rig()
    for number in range(100):
        error = ValueError(SENT)
        shown = f"Task exception was never retrieved\nfuture: <Task-{number} exception={error!r}>"
        rig.logger.error(shown, exc_info=error)
        rig.logger.error(f"Task was destroyed but it is pending!\ntask: <Task-{number}>")
    assert len(rig.lines) == 2 and "sent" not in rig.said.getvalue()


@pytest.mark.parametrize("given", [SENT, "a\r\nb\x9b", "x" * 10_000])
def test_a_line_is_one_and_short_and_harmless_to_a_terminal(given: str) -> None:
    rig = Rig()
    rig.logger.warning("it says %s", given)
    (line,) = rig.said.getvalue().split("\n")[:-1]
    assert line.isprintable() and len(line) < 600


def test_kinds_without_end_take_no_memory_without_end() -> None:
    rig = Rig()
    sparse: Any = rig.logger.handlers[0].filters[0]
    for number in range(10_000):
        rig.logger.warning(f"kind {number}")
    assert len(sparse._kinds) <= 100


def test_uvicorn_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = log.config()
    loggers = [logging.getLogger(name) for name in found["loggers"]]
    before = [(one, one.handlers[:], one.propagate) for one in loggers]
    try:
        logging.config.dictConfig(found)
        for name in ("uvicorn.error", "asyncio"):
            for _ in range(10):
                logging.getLogger(name).warning("%s is wrong", name)
    finally:
        for one, handlers, propagate in before:
            one.handlers[:], one.propagate = handlers, propagate
    assert capsys.readouterr().err.count("is wrong") == 1


def ended(*headers: tuple[str, str], error: Exception | None = None, status: int = 200) -> str:
    """The id that the answer has."""
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    entry = log.Entry(Request({"type": "http", "headers": raw, "state": {}}), "/run_code")
    answer = Response(status_code=status)
    entry.end(answer, error, is_wanted=True)
    return answer.headers["x-request-id"]


def test_a_request_has_an_id_which_its_client_may_choose(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert ended(("X-Request-Id", "step-7.a_b")) == "step-7.a_b"
    assert caplog.messages[-1].startswith("step-7.a_b /run_code 200 tenant= 0.")
    for wrong in ("", "a b", "a\r\nb", "x" * 65, "\xe9", "$(id)"):
        given = ended(("X-Request-Id", wrong))
        assert given != wrong and given.isalnum()
        assert wrong == "" or wrong not in caplog.text
    assert ended() != ended()


def test_a_fault_is_a_line_with_the_id_of_its_request(caplog: pytest.LogCaptureFixture) -> None:
    error = SandboxStartupError("podman is away")
    name = ended(error=error, status=503)
    *_, line = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert line == f"503 of /run_code, SandboxStartupError: podman is away (request {name})"
