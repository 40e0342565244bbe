# SPDX-License-Identifier: Apache-2.0
"""The types of the keywords that limit a call, or say who gets its output. Values."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping
    from typing import Literal, TypedDict

    from hutch._options.mounts import Mount
    from hutch._options.network import Secret
else:

    class TypedDict:
        """Only the names of types are read here, which the real one would compile."""

        def __init_subclass__(cls, total=True):
            pass


class SentKeywords(TypedDict, total=False):
    """The keywords that the agent is sent as they are: those with `sent` in FIELDS."""

    memory_mb: int
    cpus: float
    pids: int
    disk_mb: int
    max_age_sec: float


class LimitKeywords(TypedDict, total=False):
    """The keywords that limit each call, also of a session."""

    timeout_sec: float | None
    cpu_sec: float | None
    queue_sec: float
    output_mb: float
    result_mb: float


class OutputKeywords(TypedDict, total=False):
    """The keywords that say who gets what is printed."""

    echo: bool | None
    on_stdout: Callable[[str], object] | None
    on_stderr: Callable[[str], object] | None


class CallKeywords(LimitKeywords, OutputKeywords, total=False):
    """The keywords that one call of a session takes."""


class PolicyKeywords(SentKeywords, LimitKeywords, total=False):
    """The keywords that are fields of a `Policy`, too."""

    build_sec: float
    check_result: bool
    isolation: Literal["cell", "container", "gvisor", "shared"]
    max_calls: int
    allow_network: Iterable[str] | str | None
    env: Mapping[str, str]
    mounts: Mapping[str, str | os.PathLike[str] | Mount]
    secrets: Mapping[str, Mapping[str, Secret]] | None


OF_A_CALL = (*LimitKeywords.__annotations__, *OutputKeywords.__annotations__)
