# SPDX-License-Identifier: Apache-2.0
"""What each `hutch` command does. Each returns its exit code; what Hutch fails at is raised."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from hutch._connect.progress import escape
from hutch.cli.output import print_json, print_table


def run(options: argparse.Namespace) -> int:
    import hutch

    source, name = _script(options.script)
    keywords = _run_keywords(options, source)
    arguments = [*options.args, *options.after]
    files = {os.path.basename(path): _content(path) for path in options.file}
    stdin = None
    if options.script != "-" and not sys.stdin.isatty():
        stdin = sys.stdin.buffer.read()
    program = hutch.Program(source, filename=name, **keywords)
    outcome = program.run(stdin=stdin, args=arguments, files=files or None)
    if options.json:
        print_json(outcome.to_dict())
    elif not outcome.ok:
        _explain(outcome)
    return _exit_code(outcome)


def _script(path: str) -> tuple[str, str]:
    if path == "-":
        return sys.stdin.read(), "stdin.py"
    return _decoded(_content(path)), os.path.basename(path)


def _decoded(content: bytes) -> str:
    """As Python reads a script: a byte order mark is left out, and a coding line is followed."""
    import codecs
    import io
    import tokenize

    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    except SyntaxError as error:
        raise ValueError(f"the script is not Python source: {error}") from None
    if codecs.lookup(encoding).name in ("idna", "punycode"):  # which take quadratic time
        raise ValueError(f"the script is not Python source: encoding: {encoding}")
    return content.decode(encoding)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _run_keywords(options: argparse.Namespace, source: str) -> dict[str, Any]:
    from hutch._options.requirements import inline_dependencies, inline_metadata

    given = given_dependencies(options)
    inline = inline_dependencies(source) if inline_metadata(source) is not None else ()
    if inline and not options.allow_private_index:
        from hutch._options import index

        index.refuse_private()
    keywords: dict[str, Any] = {"dependencies": [*inline, *given], "echo": not options.json}
    if options.environment and keywords["dependencies"]:
        raise ValueError("--environment: give it, or --with and the script's own requirements")
    if options.environment or options.base or options.python:
        from hutch.cli.environments import wanted

        keywords["environment"] = wanted(options, keywords.pop("dependencies"))
    if options.mount:
        keywords["mounts"] = _mounts(options.mount)
    if options.timeout is not None:
        keywords["timeout_sec"] = options.timeout or None
    if options.memory is not None:
        keywords["memory_mb"] = options.memory
    if options.cpus is not None:
        keywords["cpus"] = options.cpus
    env = {}
    for item in options.env:
        name, sign, value = item.partition("=")
        if not sign:
            raise ValueError(f"--env {item}: write NAME=VALUE")
        env[name] = value
    return {**keywords, "env": env}


def _mounts(items: Sequence[str]) -> dict[str, str]:
    mounts = {}
    for item in items:
        source, sign, destination = item.rpartition(":")
        if not sign or not source:
            raise ValueError(f"--mount {item}: write SOURCE:DESTINATION, such as ./data:/data")
        mounts[destination] = source
    return mounts


def given_dependencies(options: argparse.Namespace) -> list[str]:
    """Those of all `--with` options."""
    return [part for text in options.dependencies for part in _split(text)]


def _split(text: str) -> list[str]:
    """At commas, but not at those of "pandas>=2,<3" or "name[a,b]"."""
    parts: list[str] = []
    for part in text.split(","):
        continues = parts and (
            parts[-1].count("[") > parts[-1].count("]") or part.strip()[:1] in "<>=!~"
        )
        if continues:
            parts[-1] += "," + part
        else:
            parts.append(part)
    return parts


def _explain(outcome: Any) -> None:
    error = outcome.error
    if outcome.status == "raised" and error is not None:
        text = error.traceback or f"{error.type}: {error.message}"
        hint = error.hint
    elif outcome.status == "died" and outcome.exit_code is not None:
        return  # the program's own way to end
    else:
        failure = outcome.exception()
        text, hint = f"hutch: {failure.message}", failure.hint
    for line in text.rstrip().splitlines():
        print(escape(line), file=sys.stderr)
    if hint:
        print(f"hint: {escape(hint)}", file=sys.stderr)


def _exit_code(outcome: Any) -> int:
    if outcome.status == "limit":
        return 124 if outcome.limit == "time" else 137
    if outcome.signal is not None:
        return 128 + int(outcome.signal)
    if outcome.exit_code is not None:
        return int(outcome.exit_code)
    return 0 if outcome.ok else 1


def ps(options: argparse.Namespace) -> int:
    import hutch
    from hutch.cli.top import open_sessions

    status = hutch.status()
    if options.json:
        print_json(status)
        return 0
    if not status["running"]:
        print("no agent runs; the first call starts it")
        return 0
    uptime = int(float(status.get("uptime_sec", 0)))
    print(
        f"agent {status.get('version', '')}, up {uptime} s, {status.get('calls', 0)} calls, "
        f"{status.get('clients', 0)} clients; {open_sessions(status)}; "
        f"limits: {status.get('enforcement', '')}"
    )
    pools = status.get("pools", [])
    if pools:
        columns = (
            "requirements memory_mb calls ready leased sessions waiting workers last_failure"
        ).split()
        print_table(sorted(pools, key=lambda pool: -pool.get("calls", 0)), columns)
    return 0


def sessions(options: argparse.Namespace) -> int:
    from hutch import _status

    found = _status.sessions()
    if options.json:
        print_json(found)
    elif not found:
        print("no sessions are open")
    else:
        rows = [
            {
                **one,
                "session": one["id"][:8],
                "age": f"{one['age_sec']:.0f} s",
                "unused": f"{one['unused_sec']:.0f} s",
                "ends after": "-" if one["idle_sec"] is None else f"{one['idle_sec']:.0f} s",
            }
            for one in found
        ]
        columns = ["session", "lease", "pid", "worker", "age", "unused", "ends after", "calls"]
        print_table(rows, [*columns, "state"])
    return 0


def metrics(options: argparse.Namespace) -> int:
    from hutch import _status

    if options.json:
        print_json(_status.metrics_json())
    else:
        sys.stdout.write(
            _status.metrics()
        )  # nothing where no agent runs, so that a scraper reads no text of ours
    return 0


def env(options: argparse.Namespace) -> int:
    from hutch import _status
    from hutch.cli import environments

    if options.action == "lock":
        return environments.lock(options)
    if options.action == "export":
        return environments.export(options)
    if options.action in ("remove", "rm"):
        if not options.digest:
            raise ValueError("hutch env remove: name at least one DIGEST")
        known = [str(item.get("digest", "")) for item in _status.environments()]
        removed = {
            digest: _status.remove_environment(environments.whole_digest(digest, known))
            for digest in options.digest
        }
        if options.json:
            print_json(removed)
        for digest, done in removed.items():
            if not done:
                print(
                    f"hutch: the environment {digest} is not there, or in use: see `hutch env`",
                    file=sys.stderr,
                )
        return 0 if all(removed.values()) else 1
    found = _status.environments()
    if options.json:
        print_json(found)
    elif not found:
        print("no environments")
    else:
        print_table(found, ["digest", "requirements", "packages", "python", "bytes", "created"])
    return 0


def agent(options: argparse.Namespace) -> int:
    import hutch

    if options.foreground:
        from hutch._connect import launcher

        launcher.become(["--foreground", *launcher.foreground_flags()])
    if options.action == "stop":
        return stop(options)
    if options.action == "reload":
        running = hutch.agent.reload()
        if options.json:
            print_json({"reloaded": running})
        else:
            print("agent.toml is read" if running else "no agent runs: the next one reads it")
        return 0
    if options.action == "start":
        hutch.agent.start()
    return ps(options)


def stop(options: argparse.Namespace) -> int:
    import hutch

    hutch.agent.stop(options.drain)
    if options.json:
        print_json({"stopped": True})
    else:
        print("stopped")
    return 0


def podman(arguments: list[str]) -> int:
    from hutch._connect import launcher

    launcher.become(["--podman", "--", *arguments])
    return 1
