# SPDX-License-Identifier: Apache-2.0
"""`GET /openapi.json`: every route, with the fields that it reads and those of its answer. The
tests hold it against the code.
"""

from __future__ import annotations

from typing import Any

from hutch.serve import fusion, piston

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}
_FLAG: Schema = {"type": "boolean"}


def _or_null(schema: Schema, text: str = "") -> Schema:
    kinds = schema["type"]
    found = {**schema, "type": [*(kinds if type(kinds) is list else [kinds]), "null"]}
    return _said(found, text)


def _said(schema: Schema, text: str) -> Schema:
    return {**schema, "description": text} if text else schema


def _list(schema: Schema, text: str = "") -> Schema:
    return _said({"type": "array", "items": schema}, text)


def _object(fields: dict[str, Schema], *required: str, closed: bool = False) -> Schema:
    found: Schema = {"type": "object", "properties": fields}
    if required:
        found["required"] = list(required)
    if closed:
        found["additionalProperties"] = False
    return found


def _named(schema: Schema, text: str = "", names: Schema | None = None) -> Schema:
    found: Schema = {"type": "object", "additionalProperties": schema}
    return _said({**found, "propertyNames": names} if names else found, text)


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_NAME = r"(?:[^./\x00][^/\x00]*|\.[^./\x00][^/\x00]*|\.\.[^/\x00]+)"  # neither "." nor ".."
_PATH: Schema = {**_TEXT, "pattern": rf"^(?:\./+)*{_NAME}(?:/+(?:{_NAME}|\.))*$"}
_BASE64: Schema = {
    **_TEXT,
    "pattern": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
}
_WITHOUT_NUL: Schema = {**_TEXT, "pattern": r"^[^\x00]*$"}
_LABEL: Schema = {**_TEXT, "minLength": 1, "maxLength": 100, "description": "printable"}
_ARGS = {**_list(_WITHOUT_NUL), "maxItems": 1000}
_FILES = _or_null(_named(_or_null(_BASE64), "relative paths, and their contents in base64", _PATH))
_FETCH = _or_null(_list(_PATH), "paths of files to answer with, however it ended")
_MEMORY = _or_null(_NUMBER, "MiB; 0, below and above: the server's most; rounded up to a size")
_WAITS = _or_null(_NUMBER, "seconds; its turn is waited for so long, and 8 more")
_SECONDS = _or_null(_NUMBER, "0, below and above: the server's most")

_PROGRAM: dict[str, Schema] = {
    "source": _said(_TEXT, "a Python program"),
    "stdin": _or_null(_TEXT),
    "stdin_base64": _or_null(_BASE64, "in place of stdin, for what is not UTF-8"),
    "args": _or_null(_ARGS, "sys.argv[1:]"),
    "files": _FILES,
}
_RUN: dict[str, Schema] = {
    **_PROGRAM,
    "timeout_sec": _or_null({**_NUMBER, "exclusiveMinimum": 0}, "above the server's most: 422"),
    "memory_mb": _or_null({**_WHOLE, "minimum": 1}, "one of the server's sizes, or 422"),
    "labels": _or_null(
        {**_named(_LABEL, names=_LABEL), "maxProperties": 8},
        "of the call, beside those of the tenant",
    ),
}
_ONE_STDIN: Schema = {
    "not": {
        "required": ["stdin", "stdin_base64"],
        "properties": {"stdin": _TEXT, "stdin_base64": _TEXT},
    }
}
_FUSION_RUN = _object(
    {
        "status": {"enum": ["Finished", "TimeLimitExceeded"]},
        "execution_time": _NUMBER,
        "return_code": _or_null(_WHOLE),
        "stdout": _TEXT,
        "stderr": _TEXT,
        "stdout_truncated": _FLAG,
        "stderr_truncated": _FLAG,
    }
)
_FUSION_STATUS: Schema = {"enum": ["Success", "Failed", "SandboxError"]}
_FUSION_COMMON: dict[str, Schema] = {
    "status": _FUSION_STATUS,
    "message": _TEXT,
    "executor_pod_name": {"type": "null"},
    "files": _named(_said(_TEXT, "base64")),
}

_VALUE: Schema = {
    "description": 'JSON, and for other data an object of one field, as {"$tuple": [1]}, '
    '{"$bytes": base64}, {"$float": "nan"}'
}
_VARIABLE: Schema = {
    **_TEXT,
    "pattern": "^[A-Za-z_][A-Za-z0-9_]*$",
    "description": "a name of Python, which may also have letters beyond ASCII, and no keyword",
}
_EXEC: dict[str, Schema] = {
    "timeout_sec": _RUN["timeout_sec"],
    "stream": _said(
        {**_FLAG, "default": False},
        "true: lines of {stdout: …} and {stderr: …} as it prints, and {outcome: …}",
    ),
}

SCHEMAS: dict[str, Schema] = {
    "Refusal": _object(
        {
            "status": {"const": "SandboxError"},
            "message": _TEXT,
            "detail": _TEXT,
            "failure": _said(_ref("Failure"), "where Hutch itself failed"),
        },
        "status", "message", "detail",
    ),
    "Failure": {
        **_object(
            {"type": _said(_TEXT, "the class that Python raises"), "message": _TEXT, "hint": _TEXT},
            "type", "message", "hint",
        ),
        "additionalProperties": True,
    },
    "Run": {**_object(_RUN, "source", closed=True), **_ONE_STDIN},
    "Map": {
        **_object(
            {
                **_RUN,
                "items": {
                    **_list(
                        {**_object(_PROGRAM, closed=True), **_ONE_STDIN},
                        "at most 10,000, each with the fields of the request as its usual",
                    ),
                    "minItems": 1,
                },
                "ordered": _said({**_FLAG, "default": True}, "false: lines come as programs end"),
            },
            "items",
            closed=True,
        ),
        **_ONE_STDIN,
        "anyOf": [
            {"required": ["source"]},
            {"properties": {"items": {"items": {"required": ["source"]}}}},
        ],
    },
    "MapLine": _object({"index": _WHOLE, "outcome": _ref("Outcome")}, "index", "outcome"),
    "Outcome": _object(
        {
            "status": {"enum": ["returned", "raised", "limit", "died", "cancelled", "fault"]},
            "ok": _FLAG,
            "value": _VALUE,
            "error": {"anyOf": [_ref("Error"), {"type": "null"}]},
            "limit": _or_null(_TEXT),
            "signal": _or_null(_WHOLE),
            "exit_code": _or_null(_WHOLE),
            "usage": _ref("Usage"),
            "timings": _named(_NUMBER, "seconds in each stage"),
            "network": _list({"type": "object"}),
            "stdout": _TEXT,
            "stderr": _TEXT,
            "stdout_size": _WHOLE,
            "stderr_size": _WHOLE,
            "stdout_truncated": _FLAG,
            "stderr_truncated": _FLAG,
            "display": _list({"type": "object"}),
            "call_id": _TEXT,
            "worker_id": _TEXT,
            "may_have_run": _FLAG,
            "restarted": _FLAG,
            "rolled_back": _FLAG,
            "files": _named(_TEXT, "content in base64"),
            "safe_to_retry": _FLAG,
            "network_lost": _TEXT,
            "failure": {"anyOf": [_ref("Failure"), {"type": "null"}]},
        }
    ),
    "Error": _object(
        {
            "type": _TEXT,
            "message": _TEXT,
            "traceback": _TEXT,
            "line": _or_null(_WHOLE),
            "hint": _TEXT,
            "bases": _list(_TEXT),
        }
    ),
    "Usage": _object(
        {
            "wall_sec": _NUMBER,
            "cpu_sec": _NUMBER,
            "peak_memory_bytes": _WHOLE,
            "waited_sec": _NUMBER,
            "enforcement": _TEXT,
            "source": _TEXT,
            "suggested": {"type": "object"},
            "background_cpu_sec": _NUMBER,
            "cpu_wait_sec": _NUMBER,
        }
    ),
    "RunCode": _object(
        {
            "code": _TEXT,
            "language": _or_null(
                {**_TEXT, "examples": [*fusion.LANGUAGES], "default": "python"},
                f"one of {', '.join(fusion.LANGUAGES)}; of another the status is SandboxError",
            ),
            "stdin": _or_null(_TEXT),
            "args": _or_null(_ARGS, "of the program; of pytest, its own, as -k NAME"),
            "run_timeout": _SECONDS,
            "compile_timeout": _WAITS,
            "memory_limit_MB": _MEMORY,
            "files": _FILES,
            "fetch_files": _FETCH,
        },
        "code",
    ),
    "RunCodeAnswer": _object(
        {
            **_FUSION_COMMON,
            "compile_result": {"type": "null"},
            "run_result": {"anyOf": [_FUSION_RUN, {"type": "null"}]},
        }
    ),
    "RunJupyter": _object(
        {
            "cells": _list(_TEXT, "at most 10,000"),
            "cell_timeout": _SECONDS,
            "total_timeout": _SECONDS,
            "compile_timeout": _WAITS,
            "memory_limit_MB": _MEMORY,
            "kernel": {"const": "python3"},
            "files": _FILES,
            "fetch_files": _FETCH,
        },
        "cells",
    ),
    "RunJupyterAnswer": _object(
        {**_FUSION_COMMON, "driver": _FUSION_RUN, "cells": _list({"type": "object"})}
    ),
    "ExecuteBatch": _object(
        {
            "scripts": _list(_TEXT, "at most 10,000"),
            "languages": _or_null(_list(_TEXT), "none, or one for each; python is there"),
            "timeout": _SECONDS,
        },
        "scripts",
    ),
    "ExecuteBatchAnswer": _list(
        _object(
            {
                "execution": _or_null({"type": "object"}),
                "text": _said(
                    _TEXT, "its value, else what it printed; of one that failed Error: …, or empty"
                ),
                "exception_str": _or_null(_TEXT),
            }
        )
    ),
    "Execute": _object(
        {
            "language": {"enum": [*piston.LANGUAGES]},
            "version": _or_null(
                {**_TEXT, "default": "*"}, "a version of Python 3, or what one satisfies, as >=3.8"
            ),
            "files": {
                **_list(
                    _object(
                        {
                            "name": _or_null(_TEXT, "a relative path; of the first, anything"),
                            "content": _TEXT,
                            "encoding": {"enum": ["utf8", "base64", "hex", None]},
                        },
                        "content",
                    ),
                    "the first is the program, in UTF-8",
                ),
                "minItems": 1,
            },
            "stdin": _or_null(_TEXT),
            "args": _or_null(_ARGS),
            "run_timeout": _or_null(_NUMBER, "ms"),
            "run_memory_limit": _or_null(_NUMBER, "bytes"),
        },
        "language", "files",
    ),
    "ExecuteAnswer": _object({"language": _TEXT, "version": _TEXT, "run": {"type": "object"}}),
    "Runtimes": _list(
        _object({"language": _TEXT, "version": _TEXT, "aliases": _list(_TEXT)})
    ),
    "Health": _object({"status": {"const": "ok"}}),
    "Pong": {"const": "pong"},
    "Document": {"type": "object"},
    "OpenSession": _object(
        {
            "files": _FILES,
            "timeout_sec": _or_null(
                {**_NUMBER, "exclusiveMinimum": 0}, "of each exec that names none"
            ),
            "memory_mb": _RUN["memory_mb"],
            "idle_sec": _or_null({**_NUMBER, "exclusiveMinimum": 0}, "unused for so long, it ends"),
            "labels": _RUN["labels"],
        },
        closed=True,
    ),
    "Session": _object({"id": _TEXT, "timeout_sec": _NUMBER, "idle_sec": _NUMBER}),
    "Exec": _object({**_EXEC, "code": _said(_TEXT, "Python")}, "code", closed=True),
    "Bash": _object(
        {**_EXEC, "code": _said(_WITHOUT_NUL, "as of bash -c"), "stdin": _or_null(_TEXT)},
        "code",
        closed=True,
    ),
    "Get": _object({"name": _VARIABLE}, "name", closed=True),
    "GetAnswer": _object({"found": _FLAG, "value": _VALUE}, "found"),
    "Set": _object({"name": _VARIABLE, "value": _VALUE}, "name", closed=True),
    "Files": _object(
        {
            "write": _or_null(_named(_or_null(_BASE64)), "paths, and their contents in base64"),
            "delete": _or_null(_list(_TEXT)),
            "read": _or_null(_list(_TEXT)),
            "list": _or_null(_TEXT, "a directory"),
        },
        closed=True,
    ),
    "FilesAnswer": _object({"files": _named(_TEXT, "base64"), "names": _list(_TEXT)}),
    "Reset": _object({"files": _said(_FLAG, "whether they go, too")}, closed=True),
    "Nothing": _object({}, closed=True),
    "SessionInfo": _object(
        {
            "started": _FLAG,
            "restarts": _WHOLE,
            "execs": _WHOLE,
            "cwd": _TEXT,
            "restartable": _or_null(_FLAG),
            "lost": _list(_TEXT, "names that a restart has cost"),
        }
    ),
}  # fmt: skip

# Path: what it does, the schemas of its body ("" of a GET) and of its answer.
ROUTES: dict[str, tuple[str, str, str]] = {
    "/v1/run": ("Runs a program.", "Run", "Outcome"),
    "/v1/map": ("Runs many, and answers a line for each.", "Map", "MapLine"),
    "/v1/sessions": ("Opens a session.", "OpenSession", "Session"),
    "/v1/sessions/{id}/exec": ("Runs Python in it.", "Exec", "Outcome"),
    "/v1/sessions/{id}/bash": ("Runs a command beside.", "Bash", "Outcome"),
    "/v1/sessions/{id}/get": ("The value of a name.", "Get", "GetAnswer"),
    "/v1/sessions/{id}/set": ("Gives a name a value.", "Set", "Nothing"),
    "/v1/sessions/{id}/files": ("Its files.", "Files", "FilesAnswer"),
    "/v1/sessions/{id}/interrupt": ("Interrupts what runs.", "Nothing", "Nothing"),
    "/v1/sessions/{id}/reset": ("Forgets its names.", "Reset", "Nothing"),
    "/v1/sessions/{id}/info": ("How it is.", "Nothing", "SessionInfo"),
    "/v1/sessions/{id}/close": ("Ends it.", "Nothing", "Nothing"),
    "/run_code": ("SandboxFusion: runs a program.", "RunCode", "RunCodeAnswer"),
    "/run_jupyter": ("SandboxFusion: runs cells.", "RunJupyter", "RunJupyterAnswer"),
    "/execute_batch": ("open-r1: runs scripts.", "ExecuteBatch", "ExecuteBatchAnswer"),
    "/api/v2/execute": ("Piston: runs a program.", "Execute", "ExecuteAnswer"),
    "/api/v2/runtimes": ("Piston: the languages.", "", "Runtimes"),
    "/": ("This list, as text.", "", ""),
    "/v1/ping": ("SandboxFusion: whether it is there.", "", "Pong"),
    "/health": ("Whether it is there.", "", "Health"),
    "/openapi.json": ("This document.", "", "Document"),
    "/metrics": ("Of the server and its agent, for Prometheus.", "", ""),
}
OPEN_TO_ALL = ("/", "/v1/ping", "/health", "/openapi.json")
_KEYED = ("/v1/run", "/v1/map")
_LINES = "application/x-ndjson"
_STREAMED = ("/v1/sessions/{id}/exec", "/v1/sessions/{id}/bash")  # with "stream": true
_STREAM_LINE = _object(
    {"stdout": _TEXT, "stderr": _TEXT, "left_out": _WHOLE, "outcome": _ref("Outcome")}, closed=True
)
_KINDS = {"/v1/map": _LINES, "/": "text/plain", "/metrics": "text/plain"}
_REFUSALS = {
    400: "the body is not JSON",
    401: "the key is missing or not known",
    403: "the Origin is not named in the server's settings",
    408: "the body was not sent in time",
    410: "of a known Idempotency-Key, whose answer is no longer kept",
    413: "the body is too large",
    415: "the body is not sent as application/json",
    421: "the Host is not named in the server's settings",
    422: "a field is wrong, or the Idempotency-Key names another request",
    429: "too many requests wait; Retry-After",
    500: "Hutch failed, and the program may have run",
    503: "Hutch failed, and the program certainly did not run; Retry-After",
    504: "there was no room in time; Retry-After",
}
_EXAMPLE = """\
curl -s http://THIS/run_code -H 'Content-Type: application/json' \\
  -d '{"code": "print(6 * 7)", "language": "python"}'
"""
_ID = {"name": "id", "in": "path", "required": True, "schema": {**_TEXT, "minLength": 1}}
_OF_SESSIONS = {
    404: "there is no such session, or it has ended; of its files: an error of the system",
    409: "the session runs something else; Retry-After",
}
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]*$"},
    "description": "Asking again under it gives the first answer, and runs nothing twice.",
}


def index() -> str:
    """For whoever opens it in a browser, or asks by curl."""
    from hutch import __version__

    lines = [f"hutch serve {__version__}", ""]
    for path, (summary, body, _) in ROUTES.items():
        lines.append(f"{'POST' if body else 'GET ':4} {path:27} {summary}")
    lines += ["", "All fields of requests and answers: /openapi.json", "", _EXAMPLE]
    return "\n".join(lines)


def refused(text: str) -> dict[str, Any]:
    content = {"application/json": {"schema": _ref("Refusal")}}
    return {"description": text, "content": content}


def document() -> dict[str, Any]:
    from hutch import __version__

    paths: dict[str, Any] = {}
    for path, (summary, body, answer) in ROUTES.items():
        content = {_KINDS.get(path, "application/json"): {"schema": _ref(answer) if answer else {}}}
        if path in _STREAMED:
            content[_LINES] = {"schema": _STREAM_LINE}
        operation: dict[str, Any] = {
            "summary": summary,
            "responses": {"200": {"description": "OK", "content": content}},
        }
        refusals = _REFUSALS if body else {code: _REFUSALS[code] for code in (401, 403, 421)}
        for status, text in refusals.items():
            operation["responses"][str(status)] = refused(text)
        if body:
            schema = {"application/json": {"schema": _ref(body)}}
            operation["requestBody"] = {"required": True, "content": schema}
        if "{id}" in path:
            operation["parameters"] = [_ID]
            for status, text in _OF_SESSIONS.items():
                operation["responses"][str(status)] = refused(text)
        if path in _KEYED:
            operation["parameters"] = [_KEY]
        if path in OPEN_TO_ALL:
            operation["security"] = []
        paths[path] = {"post" if body else "get": operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "hutch serve", "version": __version__},
        "security": [{}, {"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }
