# SPDX-License-Identifier: Apache-2.0
"""What is known of errors of JavaScript inside sandboxes: `ROWS`, tried in their order. The text
may be hostile: each pattern looks at a bounded part of it, and nothing of it is in a hint.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_MOST = 1 << 14  # characters, of the end: a program prints its error last


class Row(NamedTuple):
    """`hint`: for a sandbox without a network; `with_network`: for another one, if that differs."""

    name: str
    pattern: str
    hint: str
    with_network: str = ""


_NO_NETWORK = "the sandbox has no network: fetch the data outside, and give it by files= or stdin="
_NOT_COVERED = (
    "the name does not resolve, or no entry of allow_network= covers it: add "
    'allow_network=["name:port"]'
)
ROWS = (
    Row("script of a package", r"[^\n]{0,300}\.node'|Could not locate the bindings file"
        r"|Could not load the \W{0,3}[\w.-]{1,60}\W{0,3} module using the",
        "no script of a package of npm runs when it is installed, so what it compiles or downloads "
        "then is missing: take a package of JavaScript or WebAssembly alone"),
    Row("browser", r"Could not find (?:Chrome|Chromium|Firefox)|browsers install\b",
        "there is no browser inside, and none can be installed: jsdom or cheerio of npm read HTML"),
    Row("missing file", r"Cannot find module '(?:\.{0,2}/|\.{1,2}')",
        "there is no such file: paths begin at the working directory; a file of yours comes by "
        "files= or s.files.upload()"),
    Row("missing module", r"Cannot find (?:module|package) '",
        'a package of npm is named outside, as in node_dependencies=["its name"]; a file of yours '
        "comes by files= or s.files.upload(). Nothing is installed from inside"),
    Row("program of npm", r"spawn(?:Sync)? (?:npm|npx|yarn|pnpm|bun|deno)\b[^\n]{0,40} ENOENT"
        r"|/bin/sh: [^\n]{0,40}(?:npm|npx|yarn|pnpm)[^\n]{0,20}not found",
        "packages are named outside, by node_dependencies=; their programs are on the PATH of what "
        "Node starts, without npx"),
    Row("no program", r"spawn(?:Sync)? [^\n]{1,300} ENOENT",
        "there is no such program in the sandbox, or no such cwd"),
    Row("no resolver", r"\b(?:ENOTFOUND|EAI_AGAIN)\b", _NO_NETWORK, _NOT_COVERED),
    Row("nothing listens", r"\bECONNREFUSED\b",
        "nothing listens there: the sandbox has a loopback of its own, and no network",
        "nothing listens there, or no entry of allow_network= covers it"),
    Row("no network", r"\b(?:ENETUNREACH|EHOSTUNREACH)\b", _NO_NETWORK, _NOT_COVERED),
    Row("fetch", r"\bfetch failed\b", _NO_NETWORK, "its cause says why"),
    Row("heap", r"JavaScript heap out of memory|Allocation failed - ",
        "Node has three quarters of memory_mb as its heap: raise that, or work in parts"),
    Row("module or not", r"require is not defined in ES module scope",
        "a module has import in place of require: import {createRequire} from 'node:module', or "
        "name the file .cjs"),
    Row("no module", r"Cannot use import statement outside a module",
        "name the file .mjs, or use await import(…)"),
    Row("no page", r"\b(?:document|window|localStorage|navigator) is not defined",
        "this is Node, not a browser: jsdom of npm makes a document"),
    Row("HTML for JSON", r"Unexpected token '<'.{0,40}(?:DOCTYPE|<html|is not valid JSON)",
        "it is an HTML page, not JSON: print the beginning of the text"),
    Row("read-only",
        r"\b(?:EROFS|EACCES): [^\n]{0,60}(?:open|mkdir|unlink|rename|copyfile|rmdir)\b",
        "only the working directory and /tmp can be written to"),
    Row("no file", r"\bENOENT: no such file or directory, (?:open|scandir|stat|lstat|access|read)",
        "there is no such file: paths begin at the working directory; a file of yours comes by "
        "files= or s.files.upload()"),
    Row("watching", r"ENOSYS: [^\n]{0,60}watch",
        "there is no inotify: fs.watchFile works, and watchers with usePolling: true"),
)  # fmt: skip


def node_hint(text: str, has_network: bool = False) -> str:
    """One sentence for what Node prints of an error, or ""."""
    end = text[-_MOST:]
    for row in ROWS:
        if re.search(row.pattern, end):
            return row.with_network if has_network and row.with_network else row.hint
    return ""
