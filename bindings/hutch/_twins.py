# SPDX-License-Identifier: Apache-2.0
"""Methods that are awaited, beside those of the same name that are not: their docstrings, and what
their types are. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")


def awaits(method: Callable[..., Any]) -> Callable[[F], F]:
    """Gives a method that is awaited the docstring of the other one."""

    def with_doc(twin: F) -> F:
        twin.__doc__ = f"To be awaited. {method.__doc__ or ''}".strip()
        return twin

    return with_doc


async def result_of(method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """What a method of a Session gives whose calls are awaited: by its type it is the result, and
    in truth an awaitable of it.
    """
    awaitable: Any = method(*args, **kwargs)
    result: T = await awaitable
    return result
