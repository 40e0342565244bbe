# SPDX-License-Identifier: Apache-2.0
"""Whether a person wants what a command is about to do."""

from __future__ import annotations

import sys


def wanted(question: str, command: str, instead: str) -> bool:
    """Asks on the terminal; Ctrl-D is a no. Raises ValueError where there is none to ask on, or
    where what it is about was shown elsewhere; it says what to do `instead`.
    """
    streams = (sys.stdin, sys.stdout)
    if not all(stream is not None and stream.isatty() for stream in streams):
        raise ValueError(f"{command}: nobody can be asked here: {instead}")
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False
