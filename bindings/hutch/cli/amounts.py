# SPDX-License-Identifier: Apache-2.0
"""Times and sizes on the command line: 7d, 500M."""

from __future__ import annotations

import argparse
import re

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def duration(text: str) -> float:
    """7d, 12h, 30m, 90s."""
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 7d, 12h, 30m or 90s")
    return float(int(found[1]) * _SECONDS[found[2]])


def size(text: str) -> int:
    """500M, 2G, or bytes."""
    found = re.fullmatch(r"([0-9]{1,15})([KMG]?)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500M, 2G or 100000")
    return int(found[1]) * _BYTES[found[2]]
