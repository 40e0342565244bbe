# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: what an emulated processor needs of time, in one place. A limit that a test is
about it gives itself; how long a call may wait for its cell is none of those.
"""

from __future__ import annotations

from typing import Any

import hutch

QUEUE_SEC = 300
_sandbox, _run = hutch.sandbox, hutch.run


def sandbox(*function: Any, **settings: Any) -> Any:
    return _sandbox(*function, **{"queue_sec": QUEUE_SEC} | settings)


def run(*program: Any, **settings: Any) -> Any:
    return _run(*program, **{"queue_sec": QUEUE_SEC} | settings)


hutch.sandbox, hutch.run = sandbox, run  # before a test's file imports them
