# SPDX-License-Identifier: Apache-2.0
"""`hutch docs`: the pages of this version, which an installation has with it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hutch.cli.output import print_json, print_table

PAGES = Path(__file__).parents[1] / "docs"


def names() -> list[str]:
    return sorted(page.stem for page in PAGES.glob("*.md"))


def run(options: argparse.Namespace) -> int:
    if options.page is None:
        rows = [{"page": name, "title": _title(_text(name))} for name in names()]
        if options.json:
            print_json(rows)
            return 0
        print_table(rows, ["page", "title"])
        print("\n`hutch docs PAGE` shows one", file=sys.stderr)
        return 0
    text = _text(options.page)
    if options.json:
        print_json({"page": options.page, "title": _title(text), "text": text})
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(text))
    else:
        print(text, end="")
    return 0


def _text(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")
