# SPDX-License-Identifier: Apache-2.0
"""What code showed (`outcome.display`), as JSON and in a notebook. It comes from a sandbox, and
nothing of it may run in the page of who looks at it. Pure; safe on any thread.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping
from typing import Any

from hutch._text import as_json

_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml")
MOST_BYTES = 8 << 20  # of all that one card shows
MOST_PARTS = 500  # things
MOST_FRAMES = 20  # of them, each of which is a page of its own to a browser
# A page without scripts, which asks nobody for anything.
_POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "img-src data:; style-src 'unsafe-inline'\">"
)


def form_as_json(form: Any) -> Any:
    """Bytes, as those of a picture, in base64, as notebooks have them."""
    return base64.b64encode(form).decode() if type(form) is bytes else as_json(form)


def bundles_as_json(bundles: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{kind: form_as_json(form) for kind, form in one.items()} for one in bundles]


def card(title: str, is_ok: bool, bundles: Iterable[Mapping[str, Any]]) -> str:
    """HTML: `title` as text, and each thing shown as a picture, in a frame without scripts, or as
    text; of what is too large or too many it says so.
    """
    colour = "#2e7d32" if is_ok else "#c62828"
    parts = [f"<pre>{html.escape(title)}</pre>"]
    left, frames = MOST_BYTES, MOST_FRAMES
    for bundle in bundles:
        part = _part(bundle)
        if part is not None and part.startswith("<iframe"):
            frames -= 1
        if part is None or len(part) > left or frames < 0 or len(parts) > MOST_PARTS:
            parts.append("<pre>(more was shown: see outcome.display)</pre>")
            break
        left -= len(part)
        parts.append(part)
    inside = "".join(parts).encode("utf-8", "backslashreplace").decode()
    return f'<div style="border-left:4px solid {colour};padding:4px 10px">{inside}</div>'


def _part(bundle: Mapping[str, Any]) -> str | None:
    """None: it is too large."""
    for kind in _PICTURES:
        form = bundle.get(kind)
        data = form.encode("utf-8", "replace") if type(form) is str else form
        if type(data) is bytes:
            if len(data) > MOST_BYTES:
                return None
            # A picture of SVG runs no script in an <img>.
            source = base64.b64encode(data).decode()
            return f'<img src="data:{kind};base64,{source}" style="max-width:100%">'
    page = bundle.get("text/html")
    if type(page) is str:
        if len(page) > MOST_BYTES:
            return None
        inside = html.escape(_POLICY + page)
        return (
            f'<iframe sandbox="" srcdoc="{inside}" style="width:100%;height:300px;border:0">'
            "</iframe>"
        )
    text = bundle.get("text/plain")
    return f"<pre>{html.escape(text)}</pre>" if type(text) is str else ""
