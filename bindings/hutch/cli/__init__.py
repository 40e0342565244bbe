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
from hutch.cli.parser import parser_and_flags

FAILED, MISUSED, BROKEN, INTERRUPTED = 1, 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["podman"]:  # everything after it is Podman's own
        from hutch.cli import commands

        return _guarded(lambda: commands.podman(arguments[1:]), False)
    parser, flags_of_run = parser_and_flags()
    # Before `run` stand options of `hutch` itself, none of which has a value.
    words = [word for word in arguments if not word.startswith("-")]
    at = arguments.index("run") + 1 if words[:1] == ["run"] else len(arguments)
    of_run, program = run.divided(arguments[at:], flags_of_run)
    words = [*arguments[:at], *of_run]

    def work() -> int:
        options = parser.parse_args(words)
        options.json = getattr(options, "json", False)
        options.program = program
        if options.command is None:
            parser.print_help()
            return MISUSED
        return _dispatch(options)

    return _guarded(work, "--json" in words)


def _guarded(work: Callable[[], int], as_json: bool) -> int:
    from hutch import _core
    from hutch._errors import SandboxError
    from hutch._faults import from_core

    try:
        try:
            code = work()
        except _core.Error as error:
            raise from_core(error) from None
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
        _say(error, error.message, error.hint, as_json)
        return BROKEN
    except (ValueError, TypeError, OSError) as error:
        message = getattr(error, "message", str(error))
        _say(error, message, getattr(error, "hint", ""), as_json)
        return MISUSED


def _say(error: Exception, message: str, hint: str, as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps({"error": type(error).__name__, "message": message, "hint": hint}))
    else:
        from hutch._connect.progress import escape_lines

        said = escape_lines(str(error))  # in part it comes from the agent, or from Podman
        ours = said.startswith(("hutch:", "hutch "))  # it names the command already
        print(said if ours else f"hutch: {said}", file=sys.stderr)


# The function of each command, in a module beside this one, which is imported for it alone.
FUNCTIONS = {
    "doctor": "doctor.run",
    "run": "run.run",
    "ps": "commands.ps",
    "sessions": "commands.sessions",
    "status": "top.run",
    "top": "top.run",
    "metrics": "commands.metrics",
    "env": "commands.env",
    "logs": "logs.run",
    "agent": "commands.agent",
    "eval": "evaluate.run",
    "serve": "serve.serve",
    "bench": "bench.run",
    "stop": "commands.stop",
    "version": "version.run",
    "prune": "prune.run",
    "uninstall": "uninstall.run",
    "docs": "docs.run",
    "completion": "completion.run",
}


def _dispatch(options: argparse.Namespace) -> int:
    import importlib

    module, _, name = FUNCTIONS[options.command].partition(".")
    if options.command == "sessions" and options.action != "open":
        module, name = "saved", "run"
    function: Callable[[argparse.Namespace], int]
    function = getattr(importlib.import_module(f"hutch.cli.{module}"), name)
    return function(options)
