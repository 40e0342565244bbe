# SPDX-License-Identifier: Apache-2.0
"""`hutch completion`: the script, made by shtab of the parser itself."""

from __future__ import annotations

import argparse

from hutch.cli.output import print_json
from hutch.cli.parser import parser_and_flags

# Arguments that are files of this machine.
_FILES = (
    "script", "policy", "environment", "file", "mount", "output", "samples", "problems", "out",
    "socket", "storage",
)  # fmt: skip


def run(options: argparse.Namespace) -> int:
    script = script_for(options.shell)
    if options.json:
        print_json({"shell": options.shell, "script": script})
    else:
        print(script)
    return 0


def script_for(shell: str) -> str:
    import shtab

    parser = parser_and_flags()[0]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                for argument in command._actions:
                    if argument.dest in _FILES:
                        argument.complete = shtab.FILE
                    if argument.dest == "script":
                        argument.nargs = "*"  # the program's own arguments may be files, too
    return shtab.complete(parser, shell)
