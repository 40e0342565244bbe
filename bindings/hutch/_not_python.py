# SPDX-License-Identifier: Apache-2.0
"""What a line that is no Python was meant as: what only IPython, a shell or the reader of a chat
would understand, with what to use instead.
"""

from __future__ import annotations

import re

NO_MAGIC = "this is Python, not IPython: there are no magic commands but %cd"
LISTED_BY_PYTHON = (
    "there is no pip inside: in Python, importlib.metadata.distributions() has the packages, "
    "each with its name and version"
)
# What such lines begin with.
_SHELL = (
    *("git", "cat", "echo", "ls", "cd", "pwd", "mkdir", "rm", "cp", "mv", "grep", "find", "head"),
    *("tail", "wc", "touch", "chmod", "tar", "unzip", "curl", "wget", "export", "source", "node"),
    *("python3", "pytest", "make", "bash", "sh"),
)
_OF_NPM = (
    "packages of npm are named outside, by node_dependencies=[…], and JavaScript is run by node()"
)
_OF_SYSTEM = (
    "nothing of the system is installed inside: a package of dependencies= may bring it, or a base "
    "image of your own, by Environment(base=…)"
)
_INSTALLED_OUTSIDE = (
    "nothing is installed from inside: name the package outside, in @sandbox("
    "dependencies=[…]) or Session(dependencies=[…]), by Session.install(…), or let the code ask, "
    "by Session(on_install=…)"
)
_TIME = "time.perf_counter() before and after it"
_MAGICS = {
    "timeit": 'timeit.timeit("f(x)", globals=globals(), number=100) of the module timeit measures',
    "time": f"{_TIME} measures; outcome.usage.wall_sec has the time of the whole code",
    "env": 'os.environ["NAME"] = "value" sets a variable, os.environ lists them',
    "set_env": 'os.environ["NAME"] = "value" sets a variable',
    "run": 'exec(open("file.py").read()) runs a file in these names, runpy.run_path("file.py") in '
    "others",
    "load": 'print(open("file.py").read()) shows a file',
    "writefile": 'pathlib.Path("file").write_text("""…""") writes a file; outside: s.files.write()',
    "bash": "a line that begins with ! is a command of bash; outside: s.bash(text)",
    "sh": "a line that begins with ! is a command of bash; outside: s.bash(text)",
    "javascript": "outside, s.node(text) runs JavaScript",
    "matplotlib": "leave it out: figures that are open when the code ends are shown",
    "capture": "contextlib.redirect_stdout(io.StringIO()) catches what is printed",
    "pwd": "os.getcwd() says where it is",
    "ls": "!ls lists files",
    "who": "list(globals()) has the names",
    "whos": "list(globals()) has the names",
    "reset": "outside, s.reset() begins with a fresh interpreter",
    "load_ext": "leave it out: extensions of IPython are not there",
    "autoreload": "importlib.reload(module) loads a module again",
}
_MAGIC = re.compile(r"(?:[\w.,\[\] ]+= *)?%{1,2} *([a-z_]+)")


def _of_magic(line: str) -> str:
    found = _MAGIC.match(line)
    instead = _MAGICS.get(found[1]) if found else None
    return f"{NO_MAGIC}; {instead}" if instead else NO_MAGIC


# What a line of a SyntaxError is instead; None: a magic command.
_NOT_PYTHON = tuple(
    (re.compile(pattern), hint)
    for pattern, hint in (
        (
            r"([\w.,\[\] ]+= *)?[!%]{0,2} *(python3? +-m +)?(uv +)?(pip3?|conda|mamba) +"
            r"(list|freeze|show)\b",
            LISTED_BY_PYTHON,
        ),
        (r"[!%]{0,2} *(sudo +)?(npm|yarn|pnpm)( +[\w-]+)? +(install|add|i|ci)\b", _OF_NPM),
        (
            r"[!%]{0,2} *(sudo +)?(apt|apt-get|apk|yum|dnf|brew)( +[\w-]+)? +(install|add)\b",
            _OF_SYSTEM,
        ),
        (
            r"([\w.,\[\] ]+= *)?[!%]{1,2} *(sudo +)?(pip3?|conda|mamba|uv|apt|apt-get|npm)\b"
            r"|[!%].*\bpip3?\s+install\b"
            r"|([\w./-]+ +){0,4}(pip3?|conda|mamba|uv|apt|apt-get|npm)( +[\w-]+)? +(install|add)\b",
            _INSTALLED_OUTSIDE,
        ),
        (r"%|[\w.,\[\] ]+= *%{1,2}[a-z]", None),
        (
            r"!|\$ +\w|[\w.,\[\] ]+= *!{1,2} *\w",
            'this is Python, not a shell: run a program by subprocess.run(["ls", "-la"]); in a '
            "session, a line that begins with ! is a command",
        ),
        (
            r"\?{1,2} *[\w.]+ *$|[\w.]+ *\?{1,2} *$",
            "this is Python, not IPython: help(name) prints what a name is",
        ),
        (
            rf"(?:{'|'.join(_SHELL)})(?: +[^=\s(.\[][^=(]*)?$",
            "this is Python, not a shell: in a session, a line that begins with ! is a command of "
            "bash; outside, s.bash(text) runs it",
        ),
        (r"```|~~~", "leave out the fences of ``` around the code"),
        (r"(python|py|python3)$", "leave out the name of the language before the code"),
        (r">>> |\.\.\. |In \[\d+\]:", "leave out the prompts before the code"),
    )
)


def hint_of_line(line: str) -> str:
    """What to use instead, or "" where nothing is known of it."""
    for pattern, hint in _NOT_PYTHON:
        if pattern.match(line):
            return _of_magic(line) if hint is None else hint
    return ""
