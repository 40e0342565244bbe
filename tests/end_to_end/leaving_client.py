# SPDX-License-Identifier: Apache-2.0
"""A client of `hutch serve` that asks and leaves before it is answered."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def asked(url: str, path: str, body: Any, key: str = "") -> Iterator[None]:
    """Its client leaves at the end."""
    host, port = url.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    if key:
        head += f"Idempotency-Key: {key}\r\n"
    with socket.create_connection((host, int(port)), timeout=120) as one:
        one.sendall(head.encode() + b"Content-Length: %d\r\n\r\n%s" % (len(content), content))
        yield
