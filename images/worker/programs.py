# SPDX-License-Identifier: Apache-2.0
"""What a program finds: its `__main__`, its file, its input."""

from __future__ import annotations

import io
import linecache
import os
import re
import sys
import types
from typing import Any

import session_files
from failures import MARK, remember_source

# A program with one of these words may look for its own file, start an interpreter that does, or
# make errors that the interpreter prints itself, with the lines of files alone.
LOOKERS = re.compile(
    r"\b(__del__|__file__|argv|atexit|billiard|coverage|doctest|dotenv|dynaconf|forkserver"
    r"|icecream|inspect|joblib|loky|line_profiler|linecache|memory_profiler|mpire|multiprocess"
    r"|multiprocessing|n_jobs|numba|pathos|pdb|ProcessPoolExecutor|pytest|rich|runpy|spawn|threading"
    r"|trace|traceback|unittest)\b"
)
# Modules that keep the directory where they were imported, and the name that they keep it under.
STARTED_IN = {
    "multiprocessing.process": "ORIGINAL_DIR",
    "multiprocess.process": "ORIGINAL_DIR",
    "billiard.process": "ORIGINAL_DIR",
    "rich": "_IMPORT_CWD",
}

# What a program of a command line is called, as by the interpreter, and what its traces say instead
# of a file, as it has none. The code that runs a module is ours, and left out of traces.
WITHOUT_FILE = {"-c": "<string>", "-": "<stdin>", "-m": __file__}

_TEXT = "def f(x): return x + 1\ny = f(1)\n"
_written: set[str] = set()  # the files of programs that ran in this process


class Text:
    """A program, compiled."""

    def __init__(self, code: Any, filename: str) -> None:
        # What is no character is the compiler's error, as of any text.
        source = str(code, "utf-8", "surrogatepass").removeprefix(MARK)
        self.filename = filename
        place = WITHOUT_FILE.get(filename, filename)
        remember_source(place, source)
        # program.cc, which serves the others, gives each a file.
        self.is_looked_for = filename in WITHOUT_FILE or LOOKERS.search(source) is not None
        self.compiled = compile(source, place, "exec", dont_inherit=True)


def filename_of(meta: dict[str, Any]) -> str:
    return meta.get("filename") or "program.py"


def fresh_main(filename: str) -> types.ModuleType:
    main = types.ModuleType("__main__")
    if filename not in WITHOUT_FILE:
        main.__file__ = filename
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    main.__dict__["__annotations__"] = {}
    sys.modules["__main__"] = main
    return main


def warm_up_text() -> None:
    """Runs the parts that only programs, and functions given as text, need."""
    main, here = sys.modules["__main__"], sys.path[:]
    sys.path.insert(0, os.getcwd())
    space = fresh_main("program.py").__dict__
    remember_source("program.py", _TEXT)
    exec(compile(_TEXT, "program.py", "exec", dont_inherit=True), space)
    del linecache.cache["program.py"]
    sys.modules["__main__"], sys.path[:] = main, here


def write_program(filename: str, given: dict[str, Any]) -> None:
    """Writes the program to the file of its name in the working directory, unless there is one. An
    earlier program's, in a shared cell, is none. `given`: the caller's files."""
    if filename in WITHOUT_FILE:
        return
    path = os.path.abspath(filename)
    if not path.startswith(os.getcwd() + os.sep):
        return
    try:
        if path in _written and path not in map(os.path.abspath, given):
            os.unlink(path)
    except OSError:
        pass  # it is gone
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "x", encoding="utf-8", newline="") as file:
            _written.add(path)
            file.write("".join(linecache.getlines(filename)))
    except OSError:
        pass  # there is one, or no room: as a program whose file was deleted


def write_files(files: dict[str, Any]) -> None:
    for name, content in files.items():
        directory = os.path.dirname(name)
        if directory:
            os.makedirs(directory, exist_ok=True)
        data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
        with open(name, "wb") as file:
            file.write(data)


def feed_stdin(content: Any, anew: bool) -> None:
    """A real descriptor 0, so that child processes can read it too. `sys.stdin` looks there when it
    is read from, unless a package or `setup` took it away. `anew`: an earlier call may have read.
    """
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    fd = session_files.nameless_file(data)
    os.dup2(fd, 0)
    os.close(fd)
    now = vars(sys)["stdin"]
    if anew or now is not vars(sys)["__stdin__"] or now.closed:
        raw = io.BufferedReader(io.FileIO(0, closefd=False))
        sys.stdin = io.TextIOWrapper(raw, encoding="utf-8")


def tell_directory() -> None:
    """What a package looks for in the directory where it was imported, as multiprocessing does for
    the program and rich for its lines, is here: it was imported in the zygote, in another one.
    """
    for name, kept_as in STARTED_IN.items():
        module = sys.modules.get(name)
        if module is not None and hasattr(module, kept_as):
            setattr(module, kept_as, os.getcwd())
