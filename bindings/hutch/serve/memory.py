# SPDX-License-Identifier: Apache-2.0
"""How much memory this process may have for requests, where something limits it."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

from hutch.serve.settings import Settings

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = 160 << 20  # bytes of a process that serves, without requests
_LEAST = 8 << 20


def most_held(settings: Settings) -> int:
    """Bytes of all bodies and answers. Half of what there is: as much is taken again for a moment
    by what is made of them.
    """
    most = settings.held_mb << 20
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    limits = [one // settings.workers for one in _of_groups()]
    if soft != resource.RLIM_INFINITY:
        limits.append(soft)
    return min([most, *(max(_LEAST, (one - _OWN) // 2) for one in limits)])


def _of_groups() -> Iterator[int]:
    """`memory.max` of this process's cgroup and of those above it, where they say."""
    group = _group()
    for one in (group, *group.parents):
        try:
            text = (one / "memory.max").read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            yield int(text)


def _group() -> Path:
    try:
        line = Path("/proc/self/cgroup").read_text().splitlines()[-1]
    except (OSError, IndexError):
        return _CGROUPS
    return _CGROUPS / line.removeprefix("0::").lstrip("/")
