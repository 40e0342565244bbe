# SPDX-License-Identifier: Apache-2.0
"""Whether a person wants what a command is about to do."""

from __future__ import annotations

import sys


def wanted(question: str, command: str) -> bool:
    """Asks on the terminal. Raises ValueError where there is none to ask on."""
    if not sys.stdin.isatty():
        raise ValueError(f"{command}: nobody can be asked here: add --yes, or --dry-run to look")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
