# SPDX-License-Identifier: Apache-2.0
"""What a session can be made with. Pure; safe on any thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hutch._options.checks import _text, quoted

if TYPE_CHECKING:
    from hutch._options.options import Options

WRITABLE = ("/work", "/tmp")
_ISOLATION = (
    'a session takes "cell", "container" or "gvisor": "shared" keeps no two of its calls apart'
)


def require_for_a_session(
    options: Options, cwd: str, tool_time: str, files: Any, awaits: bool
) -> None:
    """`awaits`: whether tools may be async. Raises ValueError, TypeError."""
    if options.isolation == "shared":
        raise ValueError(f"isolation={quoted(options.isolation)}: {_ISOLATION}")
    if tool_time not in ("included", "excluded"):
        raise ValueError(f'tool_time={quoted(tool_time)}: it is "included" or "excluded"')
    if options.key is not None:
        raise ValueError("key= is for functions: a session's calls are never repeated")
    _text("cwd", cwd)
    inside = {*WRITABLE, *(place for place, mount in options.mounts if mount.writable)}
    if "\0" in cwd or not is_below(cwd, inside):
        raise ValueError(
            f"cwd={quoted(cwd)}: it is a path inside that may be written to, in "
            f"{' or '.join(sorted(inside))}"
        )
    if files is not None and not isinstance(files, Mapping):
        raise TypeError(f"files= takes a dict of paths and contents, not {type(files).__name__}")
    for tool in options.tools:
        if tool.needs_loop and not awaits:
            raise TypeError(
                f"{tool.name}() cannot be a tool of a Session: its function is async, or its "
                "approve=: AsyncSession awaits it"
            )


def is_below(path: str, places: Iterable[str]) -> bool:
    return any(path == one or path.startswith(one + "/") for one in places)
