# SPDX-License-Identifier: Apache-2.0
"""What a call prints: passed to callbacks, and shown live.

Text of a cell is hostile: what is echoed has its control characters escaped, so that it cannot talk
to the terminal. Callbacks get the text as it is. One Streams serves one call, on its thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from hutch._calls.printed import Decoder
from hutch._text import escape

if TYPE_CHECKING:
    from hutch._options.options import Options


class _Stream:
    def __init__(self, name: str, callback: Callable[[str], object] | None, echo: bool) -> None:
        self._name = name
        self._callback = callback
        self._echo = echo
        self._decoder = Decoder()

    def feed(self, data: bytes, final: bool = False) -> None:
        text = self._decoder.decode(data, final)
        if not text:
            return
        if self._echo:
            self._show(escape(text))
        if self._callback is not None:
            self._callback(text)

    def _show(self, text: str) -> None:
        stream = getattr(sys, self._name)
        if stream is None:
            return
        try:
            encoding = getattr(stream, "encoding", None) or "utf-8"
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            stream.flush()
        except (OSError, ValueError):
            self._echo = False  # the caller closed it: the call goes on, and its Outcome has all


class Streams:
    """`echo`: whether to show what comes. A stream costs nothing until something comes on it."""

    __slots__ = ("_options", "_echo", "_used")

    def __init__(self, options: Options, echo: bool) -> None:
        self._options = options
        self._echo = echo
        self._used: list[_Stream | None] = [None, None]

    def feed(self, stream: int, data: bytes) -> None:
        """`stream`: 0 is stdout, 1 stderr."""
        used = self._used[stream]
        if used is None:
            name = ("stdout", "stderr")[stream]
            callback = (self._options.on_stdout, self._options.on_stderr)[stream]
            used = self._used[stream] = _Stream(name, callback, self._echo)
        used.feed(data)

    def finish(self) -> None:
        """Passes on what is held back as half a character."""
        for stream in self._used:
            if stream is not None:
                stream.feed(b"", True)


def streams_of(options: Options, echo: bool) -> Streams | None:
    """None: nobody wants to see it. `echo`: whether it is shown where the options do not say."""
    shown = echo if options.echo is None else options.echo
    if shown or options.on_stdout is not None or options.on_stderr is not None:
        return Streams(options, shown)
    return None
