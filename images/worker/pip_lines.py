# SPDX-License-Identifier: Apache-2.0
"""Lines of a session's code that install packages, `%pip install` and `!pip install`, as IPython
takes them: what they ask for, and what they print. Pure, but for files with requirements.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

NAME = "__pip_install__"  # bindings/hutch/_session_pip.py has it too
INSTALL = re.compile(r"(?:sudo +)?(?:python3? +-m +)?(?:uv +)?pip3? +install\b(.*)", re.DOTALL)
# What says how pip shows what it does, and what is so here in any case.
NEEDLESS = re.compile(
    r"-[qvyU]+|--(?:quiet|verbose|upgrade|user|yes|no-input|no-cache-dir|disable-pip-version-check"
    r"|break-system-packages|system|progress-bar=\w+|root-user-action=\w+)"
)
OF_SHELL = re.compile(r"[|>&;]|\d>")  # begins what is for a shell
MOST_OF_FILE = 1 << 20  # characters
OF_FILE = ("-r", "--requirement")


def requirements_of(text: str) -> list[str]:
    """Of what follows `pip install`. Raises ValueError, OSError."""
    found: list[str] = []
    words = iter(shlex.split(text.replace("\\\n", " "), comments=True))
    for word in words:
        if OF_SHELL.match(word):
            if word in ("&&", ";", "||"):
                raise ValueError(f"{word}: what follows the install is for a line of its own")
            break
        if word in OF_FILE:
            found += lines_of(next(words, ""))
        elif word.startswith(("-r", "--requirement=")):
            found += lines_of(word.removeprefix("--requirement=").removeprefix("-r"))
        elif not word.startswith("-"):
            found.append(word)
        elif NEEDLESS.fullmatch(word) is None:
            raise ValueError(f"{word}: packages are added without this option of pip")
    if not found:
        raise ValueError("it names no package")
    return found


def lines_of(path: str) -> Iterator[str]:
    with open(path, encoding="utf-8") as file:
        text = file.read(MOST_OF_FILE + 1)
        if len(text) > MOST_OF_FILE:
            raise ValueError(f"{path}: more than {MOST_OF_FILE:,} characters")
        for line in text.splitlines():
            line = re.sub(r"(^|\s)#.*", "", line).strip()
            if line.startswith("-"):
                raise ValueError(f"{path}: {line}: of options in a file, none is taken")
            if line:
                yield line


def said(wanted: list[str], added: list[str]) -> str:
    """As pip prints it."""
    if not added:
        return f"Requirement already satisfied: {', '.join(wanted)}"
    return f"Successfully installed {' '.join(one.replace('==', '-') for one in added)}"
