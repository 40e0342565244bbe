# SPDX-License-Identifier: Apache-2.0
"""A policy's TOML: reading it, and writing it. Pure but for the one file that is read."""

from __future__ import annotations

import os
import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from hutch._options.options import UNLIMITED

_UNLIMITED = "unlimited"


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The fields that the file has, not checked. Raises OSError, ValueError."""
    with open(path, "rb") as file:
        try:
            fields: dict[str, Any] = tomllib.load(file)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{os.fspath(path)} is not valid TOML: {error}") from None
    for name in UNLIMITED:
        if fields.get(name) == _UNLIMITED:
            fields[name] = None
    return fields


def written(fields: dict[str, Any]) -> str:
    """The fields as TOML; pairs become tables, after everything else."""
    lines, tables = [], []
    for name, value in fields.items():
        if name == "secrets":
            tables += _secrets(value)
        elif name in ("env", "mounts"):
            tables += _table(name, value)
        else:
            lines.append(f"{name} = {_literal(value)}")
    return "\n".join([*lines, *tables]) + "\n"


def _table(name: str, pairs: Any) -> list[str]:
    if not pairs:
        return []
    return ["", f"[{name}]", *(f"{_quoted(key)} = {_literal(value)}" for key, value in pairs)]


def _secrets(hosts: Any) -> list[str]:
    """Each by the name of its variable: a value is not written down."""
    lines = []
    for host, headers in hosts:
        lines += ["", f"[secrets.{_quoted(host)}]"]
        for header, secret in headers:
            fields = secret.to_fields().items()
            inline = ", ".join(f"{name} = {_literal(value)}" for name, value in fields)
            lines.append(f"{_quoted(header)} = {{ {inline} }}")
    return lines


def _literal(value: Any) -> str:
    if value is None:
        return _quoted(_UNLIMITED)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(int(value)) if value == int(value) else repr(value)
    if isinstance(value, str):
        return _quoted(value)
    if hasattr(value, "as_caller"):
        return _mount(value)
    return "[" + ", ".join(map(_literal, value)) + "]"


def _mount(mount: Any) -> str:
    flags = [f"{name} = true" for name in ("writable", "as_caller") if getattr(mount, name)]
    source = _quoted(mount.source)
    return f"{{ {', '.join([f'source = {source}', *flags])} }}" if flags else source


def _quoted(text: str) -> str:
    """A basic string, or a key as one."""
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return (
        '"' + "".join(escapes.get(c) or (c if c.isprintable() else _escape(c)) for c in text) + '"'
    )


def _escape(character: str) -> str:
    if 0xD800 <= ord(character) < 0xE000:
        raise ValueError("TOML holds Unicode text only: a value has bytes that are not Unicode")
    return f"\\U{ord(character):08x}"
