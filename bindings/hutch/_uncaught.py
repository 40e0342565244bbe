# SPDX-License-Identifier: Apache-2.0
"""What the interpreter shows of a host that lacks something, where the program does not catch it.

The frames of Hutch say nothing of what to do, and between a first script and the one line that does
there would be a screen of them. `show_briefly` leaves the frames of the program itself, and the
message with its hint. A program, a debugger or a notebook that has a hook of its own keeps it, and
whoever catches the error has all its frames.
"""

from __future__ import annotations

import sys
from types import TracebackType

from hutch._errors import PlatformNotSupportedError


def show_briefly() -> None:
    """From now on in this process. Safe on any thread."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, PlatformNotSupportedError):
        trace = _without_ours(trace)
        error = error.with_traceback(trace)
    sys.__excepthook__(kind, error, trace)


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    kept = []
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] != "hutch":
            kept.append(trace)
        trace = trace.tb_next
    shorter = None
    for one in reversed(kept):
        shorter = TracebackType(shorter, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return shorter
