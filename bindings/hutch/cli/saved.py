# SPDX-License-Identifier: Apache-2.0
"""`hutch sessions list|show|delete|prune`: sessions with a name."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from typing import Any

import hutch
from hutch.cli.output import print_json, print_table


def run(options: argparse.Namespace) -> int:
    place = options.storage
    if place is not None and "://" not in place and not os.path.isdir(place):
        raise hutch.StorageError(f"{place}: there is no such directory")
    return {"list": _list, "show": _show, "delete": _delete, "prune": _prune}[options.action](
        options
    )


def _list(options: argparse.Namespace) -> int:
    _print(options, hutch.sessions.list(options.storage), "no sessions are kept")
    return 0


def _show(options: argparse.Namespace) -> int:
    found = [hutch.sessions.show(id, options.storage) for id in _ids(options)]
    if options.json:
        print_json(found[0] if len(found) == 1 else found)
        return 0
    for one in found:
        rows = [{"field": name, "value": _text(name, value)} for name, value in one.items()]
        print_table(rows, ["field", "value"])
    return 0


def _delete(options: argparse.Namespace) -> int:
    ids = _ids(options)
    for id in ids:
        hutch.sessions.delete(id, options.storage)
    if options.json:
        print_json({"deleted": ids})
    return 0


def _prune(options: argparse.Namespace) -> int:
    if options.older_than is None and options.max_bytes is None:
        raise ValueError("hutch sessions prune: give --older-than, --max-bytes or both")
    pruned = hutch.sessions.prune(
        options.older_than, options.max_bytes, dry_run=options.dry_run, storage=options.storage
    )
    _print(options, pruned, "nothing to delete")
    return 0


def _ids(options: argparse.Namespace) -> Sequence[str]:
    if not options.id:
        raise ValueError(f"hutch sessions {options.action}: give the id of a session")
    ids: Sequence[str] = options.id
    return ids


def _print(options: argparse.Namespace, found: Sequence[Any], none: str) -> None:
    if options.json:
        print_json([one.to_dict() for one in found])
    elif not found:
        print(none)
    else:
        rows = [
            {name: _text(name, value) for name, value in one.to_dict().items()} for one in found
        ]
        print_table(rows, ["id", "saved", "size", "version", "holder"])


def _text(name: str, value: Any) -> str:
    if name == "saved":
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(value)) if value else "-"
    if name == "size":
        return f"{value / 1e6:.2f} MB"
    if name == "holder":
        return "-" if value is None else f"process {value['pid']}"
    if isinstance(value, dict):
        return "; ".join(f"{key}: {one}" for key, one in value.items()) or "-"
    return str(value)
