# SPDX-License-Identifier: Apache-2.0
"""Sessions on the rungs that have them, and agents with another configuration."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import GVISOR

import hutch
from hutch import AsyncSession, Session, _core

sys.path.insert(0, str(Path(__file__).parent))  # package_server.py


@contextmanager
def configuring() -> Iterator[Callable[[str], None]]:
    """`write(text)` puts an agent.toml in place; the old one comes back at the end."""
    hutch.agent.start()
    file = Path(str(_core.paths()["state_dir"])) / "agent.toml"
    before = file.read_text() if file.exists() else None

    def write(text: str) -> None:
        file.write_text(text)
        file.chmod(0o644)
        hutch.agent.start()
        hutch.agent.reload()

    try:
        yield write
    finally:
        file.unlink(missing_ok=True) if before is None else file.write_text(before)
        hutch.agent.reload()


@pytest.fixture(scope="session", name="configuring")
def _configuring() -> Callable[[], AbstractContextManager[Callable[[str], None]]]:
    return configuring


@pytest.fixture
def agent_toml() -> Iterator[Callable[[str], None]]:
    """`agent_toml(text)`: the agent has that configuration until the test ends."""
    with configuring() as write:
        yield write


@pytest.fixture(scope="module", params=["cell", "container", GVISOR])
def rung(request: pytest.FixtureRequest) -> Any:
    """An `isolation=` of a session."""
    return request.param


@pytest.fixture(scope="module", params=["container", GVISOR])
def container_rung(request: pytest.FixtureRequest) -> Any:
    """One where a session has a container of its own."""
    return request.param


@pytest.fixture(scope="module")
def sessions(rung: Any) -> Iterator[Callable[[], Session]]:
    """`sessions()` is the same for all tests of a file, unless one has ended it."""
    found: list[Session] = []

    def session() -> Session:
        if not found or found[-1].info()["closed"]:
            found.append(Session(isolation=rung, timeout_sec=60))
        return found[-1]

    yield session
    for one in found:
        one.close()


@pytest.fixture
def s(sessions: Callable[[], Session]) -> Session:
    """That session, at its directory."""
    session = sessions()
    session.exec("import os; os.chdir('/work')").unwrap()
    return session


@pytest.fixture
def once_printed() -> Callable[[Callable[[], object]], Callable[[str], None]]:
    """An `on_stdout=`, by which another thread acts as soon as the code has printed something."""

    def printed(act: Callable[[], object]) -> Callable[[str], None]:
        return lambda _: threading.Thread(target=act).start()

    return printed


@pytest.fixture
def cancelled() -> Callable[[AsyncSession, str], Coroutine[Any, Any, None]]:
    """Runs a text by bash, and cancels that once it has printed something."""

    async def run(s: AsyncSession, text: str) -> None:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()
        command = s.bash(text, on_stdout=lambda _: loop.call_soon(begun.set))
        task = asyncio.ensure_future(command)
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    return run
