# SPDX-License-Identifier: Apache-2.0
"""What schemathesis does with a request before it is sent: what is right by the document and bound
by the settings of a server, or by earlier requests, becomes what this server takes. What is wrong
stays wrong.
"""

from __future__ import annotations

import json
import keyword
import uuid
from typing import Any

import schemathesis

LEAST_SEC, MOST_SEC = 1, 2


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    headers = case.headers or {}
    key = headers.get("Idempotency-Key", "")
    if isinstance(key, str) and 0 < len(key) <= 255 and key.isascii() and key.isprintable():
        headers["Idempotency-Key"] = str(uuid.uuid4())  # one names one request
    if isinstance(case.body, dict):
        case.body = as_taken(case.body)


def as_taken(body: dict[str, Any]) -> dict[str, Any]:
    body = dict(body)
    for name in ("timeout_sec", "idle_sec"):
        value = body.get(name)
        if type(value) in (int, float) and value > 0:
            body[name] = min(max(value, LEAST_SEC), MOST_SEC)
    memory = body.get("memory_mb")
    if (
        type(memory) in (int, float) and memory > 0 and memory == int(memory)
    ):  # of which a server has a few sizes
        del body["memory_mb"]
    labels = body.get("labels")
    if isinstance(labels, dict) and len(labels) <= 8:
        texts = [*labels, *labels.values()]
        if all(type(one) is str and 0 < len(one) <= 100 for one in texts):
            del body["labels"]  # of which it takes few sets, each with workers of its own
    return body


@schemathesis.hook
def filter_body(context: Any, body: Any) -> bool:
    """Without names that the pattern of a name of Python says too little of."""
    name = body.get("name") if isinstance(body, dict) else None
    if type(name) is not str:
        return True
    return not keyword.iskeyword(name) and (name.isascii() or not name.isidentifier())


@schemathesis.deserializer("application/x-ndjson")
def first_line(context: Any, response: Any) -> Any:
    return json.loads(response.content.split(b"\n")[0])
