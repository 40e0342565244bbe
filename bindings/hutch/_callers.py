# SPDX-License-Identifier: Apache-2.0
"""Where a warning points to: the line of the user's that called Hutch."""

from __future__ import annotations

import sys


def callers_level() -> int:
    """The `stacklevel` for a warning here that shows the line outside of Hutch."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("hutch."):
        frame, level = frame.f_back, level + 1
    return level
