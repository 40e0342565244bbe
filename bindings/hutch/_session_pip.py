# SPDX-License-Identifier: Apache-2.0
"""`%pip install` in a session's code: a tool that asks the caller, and adds packages as install()
does. The code sees no such tool: lines of it are sent here (images/worker/pip_lines.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

from hutch._tools import Tool
from hutch._twins import result_of


class Installs(Protocol):
    """A session."""

    def install(self, *requirements: str) -> Any: ...


NAME = "__pip_install__"  # images/worker/pip_lines.py has it too
_DESCRIPTION = "%pip install"


def tool_of(
    session: Installs,
    checked: Callable[[list[str]], list[str]],
    on_install: Callable[[list[str]], bool],
    awaits: bool,
) -> Tool:
    """It does not keep the session. `checked`: the requirements, or it raises. `awaits`: whether
    what the session gives is to be awaited. Raises TypeError.
    """
    if not callable(on_install):
        raise TypeError(f"on_install= takes a function, not {on_install!r:.100}")
    of = weakref.ref(session)

    def asked(requirements: list[str]) -> Installs:
        found, requirements = of(), checked(requirements)
        if found is None or on_install([*requirements]) is not True:
            raise PermissionError(f"{', '.join(requirements)}: the caller does not allow it")
        return found

    def install(requirements: list[str]) -> list[str]:
        added: list[str] = asked(requirements).install(*requirements)
        return added

    async def install_later(requirements: list[str]) -> list[str]:
        added: list[str] = await result_of(asked(requirements).install, *requirements)
        return added

    return Tool(install_later if awaits else install, name=NAME, description=_DESCRIPTION)
