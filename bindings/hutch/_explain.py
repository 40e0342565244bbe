# SPDX-License-Identifier: Apache-2.0
"""What to do about an error that happened inside a sandbox, from what is reported of it alone.

Pure functions over text; the text may be hostile and is never evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hutch._hints import ROWS, TEXT_LIMIT, ErrorFacts, Row
from hutch._node_hints import node_hint
from hutch._outcome import ErrorInfo

_LAST = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_FRAME = re.compile(r'^\s+File "(?P<file>[^"\n]*)", line (?P<line>\d{1,9})')
_OWN_HINT = re.compile(r"\n  hint: ([^\n]{1,2000})")


def hint_for(
    type_name: str,
    message: str,
    traceback: str = "",
    *,
    has_network: bool = False,
    limit: str = "",
    of_session: bool = False,
    near: Sequence[str] = (),
    lost: Sequence[str] = (),
) -> str:
    """One sentence, or "" where there is nothing to say. `has_network`: whether the call was given
    one. `limit`: the one that the error is of; "": none. `of_session`: it is of a session's code.
    `near`: names there that are like the one that was not found. `lost`: those that the session
    lost when its interpreter was last restarted.
    """
    error = ErrorFacts(
        type_name,
        message,
        traceback,
        has_network=has_network,
        limit=limit,
        of_session=of_session,
        near=near,
        lost=lost,
    )
    return next((hint for hint in (_said(row, error) for row in ROWS) if hint), "")


def _said(row: Row, error: ErrorFacts) -> str:
    if row.types and error.type not in row.types.split():
        return ""
    found = re.search(row.pattern, error.message)
    if found is None:
        return ""
    return row.hint if isinstance(row.hint, str) else row.hint(error, found)


def explain(text: str) -> ErrorInfo:
    """Type, message, line and hint from the text of any Python traceback, or of its last line, as
    an exception is printed; also from what Node prints of an error.

        hutch.explain("ModuleNotFoundError: No module named 'cv2'").hint
    """
    if not isinstance(text, str):
        raise TypeError(f"explain takes a traceback as str, not {type(text).__name__}")
    lines = text[-TEXT_LIMIT:].rstrip().splitlines()
    start = 0
    for i, line in enumerate(lines):
        if line.startswith("Traceback (most recent call last)"):
            start = i  # the last one: those before are what it came from
    number: int | None = None
    kind, message = "", ""
    for i in range(start, len(lines)):
        frame = _FRAME.match(lines[i])
        if frame:
            number = int(frame.group("line"))
        last = _LAST.match(lines[i])
        if last and not lines[i].startswith("Traceback") and (number is not None or not kind):
            kind = last.group("type")
            message = "\n".join([last.group("message") or "", *lines[i + 1 :]]).rstrip()
            break
    own = _OWN_HINT.search(message) if kind.startswith("hutch.") else None
    if own:
        return ErrorInfo(kind, message[: own.start()], text, number, own.group(1))
    hint = hint_for(kind, message, text) or node_hint(text)
    return ErrorInfo(kind, message, text, number, hint)
