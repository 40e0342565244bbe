# SPDX-License-Identifier: Apache-2.0
"""The agent of this user, controlled by hand. A first call starts it by itself."""

from __future__ import annotations

from hutch import _core
from hutch._connect import connection, launcher
from hutch._faults import from_core
from hutch._options.checks import _number


def start() -> None:
    """Starts the agent unless it runs, as a first call would."""
    connection.ensure_current()


def stop(drain_sec: float = 0.0) -> None:
    """Removes the agent and all its containers. Succeeds where there are none. Named sessions (of
    any process) are saved first, and end.

    `drain_sec`: how long calls that run (of any process) may take to finish.
    """
    from hutch._session_named import end_before_agent

    drain_ms = int(1000 * _number("drain_sec", drain_sec, 0, 86400, zero=True))
    client = connection.existing() if drain_ms else None
    if client is not None:
        try:
            client.stop_agent(drain_ms)
        except _core.Error:
            pass  # it has ended, or does not answer: its containers are removed below
    end_before_agent()
    connection.close()
    try:
        launcher.run("--stop")
    except _core.Error as error:
        raise from_core(error) from None


def reload() -> bool:
    """Makes the running agent read its agent.toml again. False: none runs; the next one reads it
    when it starts. Raises SandboxError, naming the line, for a mistake in it: then the previous
    configuration stays in effect.
    """

    def reloaded(client: _core.Client) -> bool:
        client.reload()
        return True

    return connection.on_existing(reloaded) or False


async def start_aio() -> None:
    import asyncio

    await asyncio.to_thread(start)


async def reload_aio() -> bool:
    import asyncio

    return await asyncio.to_thread(reload)


async def stop_aio(drain_sec: float = 0.0) -> None:
    import asyncio

    await asyncio.to_thread(stop, drain_sec)
