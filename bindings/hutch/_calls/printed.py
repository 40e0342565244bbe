# SPDX-License-Identifier: Apache-2.0
"""What a call prints, as bytes, for callers that stream it."""

from __future__ import annotations

from collections.abc import Callable

Feed = Callable[[int, bytes], None]


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
        return self.kept[stream].decode("utf-8", "backslashreplace")

    def truncated(self, stream: int) -> bool:
        return self.sizes[stream] > len(self.kept[stream])
