# SPDX-License-Identifier: Apache-2.0
"""The text of code as a file of it would be read."""

from __future__ import annotations

import io

MARK = "\ufeff"  # a byte order mark


def without_mark(text: str) -> str:
    return text[1:] if text.startswith(MARK) else text


def lines_of(text: str) -> list[str]:
    """Its lines with their ends: they end where those of a file do, and at no other character that
    separates lines of prose.
    """
    return io.StringIO(text, newline=None).readlines()
