# SPDX-License-Identifier: Apache-2.0
"""A command of a session that an event loop waits for. On the loop's thread."""

from __future__ import annotations

import asyncio

from hutch._calls.command_run import CommandRun


async def end_of(run: CommandRun) -> None:
    """Where the task is cancelled, or a callback raises, it is killed first."""
    try:
        await _over(run)
    except GeneratorExit:  # the loop has ended
        run.cancel("interrupted")
        raise
    except BaseException:
        run.mute()
        run.cancel("interrupted")
        await _over(run)
        raise


async def _over(run: CommandRun) -> None:
    while not run.step():
        await _change(run)


async def _change(run: CommandRun) -> None:
    loop = asyncio.get_running_loop()
    changed = loop.create_future()

    def wake() -> None:
        if not changed.done():
            changed.set_result(None)

    descriptors = run.descriptors
    patience = run.patience()
    timer = None if patience == float("inf") else loop.call_later(patience, wake)
    for fd in descriptors:
        loop.add_reader(fd, wake)
    try:
        await changed
    finally:
        if timer is not None:
            timer.cancel()
        if not loop.is_closed():
            for fd in descriptors:
                loop.remove_reader(fd)
