# SPDX-License-Identifier: Apache-2.0
"""`hutch logs`: the log of the agent, and of the egress process where there is one; `--audit`: one
line for each call that the agent served.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hutch._connect.progress import escape
from hutch.cli.inventory import podman

_POLL_SEC = 0.3
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def run(options: argparse.Namespace) -> int:
    if options.follow and options.json and not options.audit:
        raise ValueError("hutch logs --follow has no end: it takes --json with --audit alone")
    if options.audit:
        return _audit(options)
    from hutch.cli import commands, inventory
    from hutch.cli.output import print_json

    paths = inventory.paths()
    agent = "" if paths is None else str(paths["agent_container"])
    if not agent or podman("container", "exists", agent).returncode == 1:
        if options.json:
            print_json({"lines": []})
        print(
            "hutch: no agent runs, so there is no log; the first call starts one", file=sys.stderr
        )
        return 1
    containers = [agent, *_egress_containers()]
    arguments = ["logs"]
    if options.follow:
        arguments.append("--follow")
    if options.tail is not None:
        arguments += ["--tail", str(options.tail)]
    if options.follow:
        return commands.podman([*arguments, *containers])
    timed: list[tuple[str, str]] = []
    for number, container in enumerate(containers):
        done = podman(*arguments, container)
        if done.returncode == 0:
            timed += _timed(done.stdout + done.stderr)
        elif number == 0:  # an egress process may just have ended, and is then in no log
            sys.stderr.write(done.stderr)
            return done.returncode
    timed.sort(key=lambda line: line[0])
    tail = None if options.tail is None or options.tail < 0 else options.tail
    lines = list(deque((line for _, line in timed), tail))
    if options.json:
        print_json({"lines": lines})
    else:
        sys.stdout.writelines(line + "\n" for line in lines)
    return 0


def last_error() -> str:
    """Why the agent last failed at something, by its log; "": it says nothing, or has none."""
    from hutch import _core

    done = podman("logs", "--tail", "200", str(_core.paths()["agent_container"]))
    return error_in(done.stdout + done.stderr) if done.returncode == 0 else ""


def error_in(text: str) -> str:
    found = [line for line in text.splitlines() if _TIME.match(line) and " error " in line[:64]]
    why = _WHY.search(found[-1]) if found else None
    return (why[1].replace('\\"', '"') if why else found[-1])[:1000] if found else ""


_WHY = re.compile(r'\bwhy="((?:[^"\\]|\\.)*)"')


def _timed(text: str) -> list[tuple[str, str]]:
    """Each line with its time; a line that has none belongs to the one before it."""
    found, at = [], ""
    for line in text.splitlines():
        match = _TIME.match(line)
        at = match[0] if match else at
        found.append((at, line))
    return found


def _egress_containers() -> list[str]:
    from hutch import _core

    label = f"label=hutch.instance={_core.paths()['instance'] or 'default'}"
    role = "label=hutch.role=egress"
    done = podman("ps", "--all", "--filter", label, "--filter", role, "--format", "{{.Names}}")
    return done.stdout.split() if done.returncode == 0 else []


def _audit(options: argparse.Namespace) -> int:
    from hutch import _core

    directory = Path(str(_core.paths()["state_dir"])) / "audit"
    if options.tail is not None and options.tail < 0:
        raise ValueError(f"--tail {options.tail}: give a number of lines, 0 or more")
    if options.follow:
        for line in _followed(directory, options.tail):
            print(line if options.json else escape(line), flush=True)
        return 0
    found = list(deque(_lines(directory), options.tail))
    if options.json:
        print(json.dumps([entry for line in found for entry in _parsed(line)]))
    else:
        sys.stdout.writelines(escape(line) + "\n" for line in found)
    return 0


def _parsed(line: str) -> list[dict[str, Any]]:
    """None for the rest of a line that was cut off."""
    try:
        value = json.loads(line)
    except ValueError:
        return []
    return [value] if isinstance(value, dict) else []


def _files(directory: Path) -> list[Path]:
    """The oldest first."""
    numbered = []
    for path in directory.glob("audit.jsonl.*"):
        if path.suffix[1:].isdigit():
            numbered.append((int(path.suffix[1:]), path))
    return [path for _, path in sorted(numbered, reverse=True)] + [directory / "audit.jsonl"]


def _lines(directory: Path) -> Iterator[str]:
    for path in _files(directory):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                yield from (line.rstrip("\n") for line in file)
        except FileNotFoundError:
            continue  # nothing was written yet, or it was just rotated away


def _followed(directory: Path, tail: int | None) -> Iterator[str]:
    """The last ones, and then those that come."""
    yield from deque(_lines(directory), 10 if tail is None else tail)
    path = directory / "audit.jsonl"
    file, rest = None, ""
    try:
        file = open(path, encoding="utf-8", errors="replace")
        file.seek(0, os.SEEK_END)
    except FileNotFoundError:
        pass
    while True:
        text = "" if file is None else file.read()
        *whole, rest = (rest + text).split("\n")
        yield from whole
        if text:
            continue
        try:
            there = os.stat(path)
            if file is None or os.fstat(file.fileno()).st_ino != there.st_ino:
                if file is not None:
                    yield from file.read().splitlines()
                file, rest = open(path, encoding="utf-8", errors="replace"), ""
                continue
        except FileNotFoundError:
            pass
        time.sleep(_POLL_SEC)
