# SPDX-License-Identifier: Apache-2.0
"""What a call prints, as bytes, for callers that stream it."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Any

from hutch import _core

Feed = Callable[[int, bytes], None]


class Decoder(codecs.BufferedIncrementalDecoder):
    """Of a stream that comes in pieces."""

    def _buffer_decode(self, data: Any, errors: str, final: bool) -> tuple[str, int]:
        size = len(data) if final else _core.printed_prefix(data)
        return _core.printed_text(data[:size]), size


class Printed:
    """At most `most` bytes of each stream, of which 0 is stdout and 1 stderr."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.kept = (bytearray(), bytearray())
        self.sizes = [0, 0]

    def add(self, stream: int, data: bytes) -> None:
        kept = self.kept[stream]
        kept += data[: self.most - len(kept)]
        self.sizes[stream] += len(data)

    def feeding(self, feed: Feed | None) -> Feed:
        """Gets what `feed` gets, too."""

        def fed(stream: int, data: bytes) -> None:
            self.add(stream, data)
            if feed is not None:
                feed(stream, data)

        return fed

    def text(self, stream: int) -> str:
        return _core.printed_text(bytes(self.kept[stream]))

    def truncated(self, stream: int) -> bool:
        return self.sizes[stream] > len(self.kept[stream])
