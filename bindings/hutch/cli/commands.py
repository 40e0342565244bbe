# SPDX-License-Identifier: Apache-2.0
"""What each `hutch` command does. Each returns its exit code; what Hutch fails at is raised."""

from __future__ import annotations

import argparse
import sys

from hutch.cli.output import print_json, print_table


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
        print_table(found, ["digest", "requirements", "packages", "python", "bytes", "last_used"])
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
    if options.action == "restart":
        hutch.agent.stop(options.drain)
    if options.action in ("start", "restart"):
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
