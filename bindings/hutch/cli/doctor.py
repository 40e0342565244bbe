# SPDX-License-Identifier: Apache-2.0
"""`hutch doctor`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from hutch._connect.progress import escape
from hutch.cli.logs import last_error
from hutch.cli.mending import mend
from hutch.cli.output import print_json


def run(options: argparse.Namespace) -> int:
    import hutch

    if options.fix and options.json:
        raise ValueError("hutch doctor --fix asks, so it has no --json")
    report = hutch.doctor(prove=not options.quick)
    for check in report["checks"]:
        if check["name"] == "a call" and not check["ok"]:
            why = last_error()
            check["detail"] += f"; the agent's log: {why}" if why else ""
            check["fix"] = check["fix"].removesuffix("; `hutch doctor` checks the host")
    if options.json:
        print_json(report)
        return 0 if report["ok"] else 1
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for check in report["checks"]:
        mark, code = _mark(check)
        shown = f"\x1b[{code}m{mark}\x1b[0m" if colour else mark
        print(f"{shown} {escape(str(check['name']))}: {escape(str(check['detail']))}")
        if not check["ok"] and check.get("fix"):
            print(f"     fix: {escape(str(check['fix']))}")
    if options.fix and mend(report["checks"], options.yes):
        print()
        return run(argparse.Namespace(**{**vars(options), "fix": False}))
    return 0 if report["ok"] else 1


def _mark(check: dict[str, Any]) -> tuple[str, int]:
    if check["ok"]:
        return " ok ", 32
    return ("FAIL", 31) if check.get("required", True) else ("warn", 33)
