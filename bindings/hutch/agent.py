# SPDX-License-Identifier: Apache-2.0
"""The agent of this user, by hand: it starts by itself on a first call."""

from __future__ import annotations

from hutch import _core
from hutch._faults import from_core


def start() -> None:
    """Makes the agent be there, as a first call would."""
    from hutch._connect import connection

    connection.ensure_current()


def stop(drain_sec: float = 0.0) -> None:
    """Removes the agent and every container of it; nothing there is success.

    `drain_sec`: how long calls that run (of any process) may take to finish.
    """
    from hutch._connect import connection, launcher
    from hutch._options.checks import _number

    drain_ms = int(1000 * _number("drain_sec", drain_sec, 0, 86400, zero=True))
    client = connection.existing() if drain_ms else None
    if client is not None:
        try:
            client.stop_agent(drain_ms)
        except _core.Error:
            pass  # it does not answer: what is left of it is removed below
    connection.close()
    try:
        launcher.run("--stop")
    except _core.Error as error:
        raise from_core(error) from None


def reload() -> bool:
    """Makes the agent that runs read its agent.toml again. False: none runs; the next one reads it
    when it starts. Raises SandboxError, naming the line, where there is a mistake in it: then what
    held goes on.
    """
    from hutch._connect import connection

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
