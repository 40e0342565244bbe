# SPDX-License-Identifier: Apache-2.0
"""What is known of errors that happen inside sandboxes: `ROWS`, and what its rows need. The text
may be hostile: it is never evaluated, each pattern looks at a bounded part of it, and what of it is
in a hint is short and escaped (`_shown`).
"""

from __future__ import annotations

import collections.abc
import errno
import re
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hutch._distributions import distribution_of
from hutch._not_python import NO_MAGIC, hint_of_line
from hutch._text import escape

TEXT_LIMIT = 1 << 20
_MESSAGE_LIMIT = 8192
_SHOWN_LIMIT = 100
MOST_NEAR = 3


class ErrorFacts:
    """What is known of an error. `type`: the last part of its name. `where`, `line`: the function
    that raised it, and its line of source. `near`: names that its code may have meant.
    """

    def __init__(
        self,
        type_name: str,
        message: str,
        traceback: str = "",
        *,
        has_network: bool = False,
        limit: str = "",
        of_session: bool = False,
        near: Sequence[str] = (),
        lost: Sequence[str] = (),
    ) -> None:
        self.type = type_name.rpartition(".")[2]
        self.message = message[:_MESSAGE_LIMIT]
        self.traceback = traceback[-TEXT_LIMIT:]
        self.where, self.line = _last_frame(self.traceback)
        self.has_network = has_network
        self.limit = limit
        self.of_session = of_session
        self.near = near
        self.lost = lost

    def by(self, keywords: str) -> str:
        """Keywords, as their caller would give them."""
        return f"Session({keywords})" if self.of_session else keywords

    def adding(self, package: str) -> str:
        """What its caller does to have it there."""
        if self.of_session:
            return f'have it added from outside, by s.install("{package}")'
        return f'add dependencies=["{package}"]'

    def meant(self) -> str:
        return " or ".join(map(_shown, self.near[:MOST_NEAR]))


Hint = Callable[[ErrorFacts, "re.Match[str]"], str]


class Row(NamedTuple):
    """`types`: of exceptions, by the last parts of their names; "": any. `pattern`: of their
    message. `hint`: a sentence, or what makes it, or "" where there is nothing to say.
    """

    name: str
    types: str
    pattern: str
    hint: str | Hint


def _shown(text: str) -> str:
    cut = text if len(text) <= _SHOWN_LIMIT else text[:_SHOWN_LIMIT] + "…"
    return escape(repr(cut))


def _errno(number: int, *texts: str) -> str:
    """The pattern of an error of the kernel, which code that raises it itself mostly words anew;
    Python's, or Rust's.
    """
    either = "|".join(texts)
    return rf"\[Errno {number}\] (?:{either})|(?:{either}) \(os error {number}\)"


# ---- modules and names


def _module(error: ErrorFacts, found: re.Match[str]) -> str:
    full = found[1]
    top = full.partition(".")[0]
    if top == "hutch":
        return "Hutch is not inside the sandbox: call the function from outside instead"
    if top == "sandbox_utils":
        return "sandbox_utils is only in the code's own process, not in other interpreters"
    if found[2]:
        return f"{top} is a module here, not a package: a file {top}.py may hide the package"
    if top in _OF_WINDOWS:
        return f"{top} is a part of Windows, and this is Linux"
    if full == top and top in _USUAL_MODULES:
        there = "s.files.upload() or files=" if error.of_session else f'modules=["{top}"] or files='
        return f"{top} is a module of yours, it seems: have it there by {there}"
    if top in sys.stdlib_module_names:
        lacks = "is not inside the sandbox" if full == top else f"has no {full} there"
        return f"{top} is a part of Python that {lacks}"
    part = _OF_GOOGLE.search(error.line) if full == "google" else None
    known = distribution_of(f"google.{part[1]}" if part else full)
    if full == "google" and known is None:
        return "name its package outside, such as google-cloud-storage: google itself is none"
    if full != top and known is None:
        return f"{top} is there, and has no {full}: another version may, as in " + error.by(
            f'dependencies=["{top}==…"]'
        )
    return f'{error.adding(known or top)}, if it is a package; add modules=["{top}"] if it is yours'


def _name(error: ErrorFacts, found: re.Match[str]) -> str:
    name = found[1]
    if name in error.lost:
        return f"{name} was lost when the interpreter was restarted: define or import it again"
    if name == "get_ipython":
        return NO_MAGIC
    usual = _USUAL_NAMES.get(name)
    if usual:
        return f"add `{usual}` before it"
    if name in _OF_JSON:
        return f"Python has {_OF_JSON[name]} for it; json.loads(text) reads JSON"
    is_line = name == "In" or error.line == name or error.line.startswith(f"{name} ")
    of_line = hint_of_line(error.line) if is_line else ""
    if of_line:
        return of_line
    if name in sys.stdlib_module_names and not name.startswith("_"):
        return f"add `import {name}` before it"
    return ""


def _not_in_module(error: ErrorFacts, found: re.Match[str]) -> str:
    name, module = found[1], found[2]
    if module == "collections" and name in _OF_ABC:
        return f"from collections.abc import {name}"
    if module.partition(".")[0] in sys.stdlib_module_names:
        return "this Python has no such name there: look by dir() for what it is called"
    return (
        "that version has no such name: look by dir() for what it is called there, or ask for "
        'another version in dependencies=["name==…"]'
    )


_OF_GOOGLE = re.compile(r"\bgoogle(?:\.| import )(\w{1,100}(?:\.\w{1,100}){0,9})")
_OF_ABC = frozenset(collections.abc.__all__)
_OF_WINDOWS = frozenset(("win32com", "win32api", "win32gui", "winreg", "msvcrt", "winsound"))
# Files beside the code have such names, and projects that nobody means.
_USUAL_MODULES = frozenset(
    "utils helpers helper config settings constants common models app main src lib core tests "
    "my_module mymodule".split()
)
_USUAL_NAMES = {
    "np": "import numpy as np",
    "pd": "import pandas as pd",
    "plt": "import matplotlib.pyplot as plt",
    "Path": "from pathlib import Path",
    "defaultdict": "from collections import defaultdict",
}
_OF_JSON = {
    "true": "True",
    "false": "False",
    "null": "None",
    "nan": "float('nan')",
    "NaN": "float('nan')",
    "Infinity": "float('inf')",
}
_OPTIONAL = {"lxml": "lxml", "pytables": "tables", "tables": "tables"}


def _optional(error: ErrorFacts, found: re.Match[str]) -> str:
    name = found[1] or found[2] or found[3]
    name = distribution_of(name) or _OPTIONAL.get(name.lower(), name)
    return f"{error.adding(name)}, which it uses for this"


def _of_ipython(error: ErrorFacts, _: re.Match[str]) -> str:
    line = _SYNTAX_LINE.search(error.traceback)
    return hint_of_line(line.group(1)) if line else ""


_SYNTAX_LINE = re.compile(r'^ {2}File "[^"\n]*", line \d+\n +([^\n]{1,1000})', re.M)


# ---- files, processes and the network

_LAST_FRAME = re.compile(r'^ {2,}File "[^"\n]*", line \d+, in ([^\n]*)\n([^\n]*)', re.M)
_PATH = re.compile(r": b?(['\"])([^\n]{1,4096}?)\1")
# A line that makes what it names.
_WRITES = re.compile(
    r"\bopen\([^()]{1,500},\s*(?:mode\s*=\s*)?['\"][wax]|\bmode='[wax]"
    r"|\b(?:mkdir|symlink|mkfifo)\("
)
_STARTING = frozenset(("_execute_child", "_posix_spawn", "_execvpe", "_spawnvef"))
_FORK = re.compile(r"\b(os\.fork|forkpty|fork_exec|posix_spawnp?)\b")
# Directories of every sandbox, of which the first is where it works.
_SCRATCH = ("/work", "/tmp", "/var/tmp", "/dev/shm")
_NO_NETWORK = "the sandbox has no network: fetch the data outside and pass it as an argument"
# As requests and urllib3, or aiohttp, name it.
_HOST = re.compile(r"(?:host='|to host )([\w.-]{1,253})(?:', port=|:)(\d{1,5})")
_PORTS = {"http": 80, "https": 443}
_NO_TERMINALS = "the sandbox has no pseudo-terminals: use pipes"
_TOO_MANY = "there are more processes or threads than pids= allows: start fewer, or raise it"


def _last_frame(traceback: str) -> tuple[str, str]:
    """The function that raised it, and its line, where they are known."""
    where, line = "", ""
    for found in _LAST_FRAME.finditer(traceback):
        where, line = found.group(1), found.group(2).strip()
    return where, line


def _path_in(error: ErrorFacts) -> str:
    path = _PATH.search(error.message)
    return path.group(2) if path else ""


def _no_file(error: ErrorFacts, _: re.Match[str]) -> str:
    if re.search(r"\b(openpty|forkpty)\b", error.line):
        return _NO_TERMINALS
    name = _path_in(error)
    if error.where in _STARTING and re.fullmatch(r"[\w.+-]{1,100}", name):
        return f"the sandbox has no program {name}: a package of dependencies= may bring it"
    if error.of_session and not error.where and re.fullmatch(r"[\w+-]{1,100}", name):
        return f"the sandbox has no program {name}: a package of dependencies= may bring it"
    if "/" in name and _WRITES.search(error.line):
        return f"its directory is not there: os.makedirs({_shown(_above(name))}, exist_ok=True)"
    if error.near:
        return f"there is no such file; did you mean {error.meant()}?"
    if error.of_session:
        return "files of the host are not in the sandbox: add one by s.files.upload() or files="
    return "files of the host are not in the sandbox: pass the content as an argument, or by files="


def _above(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _not_writable(error: ErrorFacts, found: re.Match[str]) -> str:
    if "Permission denied" in found[0] and not _is_elsewhere(_path_in(error)):
        return ""
    return "only the working directory and /tmp can be written to"


def _is_elsewhere(path: str) -> bool:
    """Whether a path is one that nothing can be written to."""
    return path.startswith("/") and not any(f"{path}/".startswith(f"{one}/") for one in _SCRATCH)


def _no_process(error: ErrorFacts, _: re.Match[str]) -> str:
    started = error.where in _STARTING or _FORK.search(error.line)
    return _TOO_MANY if started and error.limit in ("", "pids") else ""


def _no_thread(error: ErrorFacts, _: re.Match[str]) -> str:
    own = error.line.startswith("raise ") or error.limit not in ("", "pids")
    return "" if own else _TOO_MANY


def _no_room(error: ErrorFacts, found: re.Match[str]) -> str:
    if error.limit and "Errno" in found[0]:
        return ""  # the limit has a hint of its own
    return (
        "no space is left: delete files, or, if it was written to the scratch, raise disk_mb= and "
        "memory_mb=, in which its files count, too"
    )


def _no_memory(error: ErrorFacts, _: re.Match[str]) -> str:
    if error.limit:
        return ""  # that has a hint of its own
    return f"raise {error.by('memory_mb=…')}, or work on the data in parts"


def _without_network(hint: str) -> Hint:
    return lambda error, _: "" if error.has_network else hint


def _not_allowed(error: ErrorFacts, _: re.Match[str]) -> str:
    if not error.has_network:
        return _NO_NETWORK
    place = _HOST.search(error.message)
    name = f"{place[1]}:{place[2]}" if place else "name:port"
    entry = f'allow_network=["{name}"]'
    return f"a name that no entry of allow_network= covers does not resolve: add {error.by(entry)}"


def _refused(error: ErrorFacts, found: re.Match[str]) -> str:
    """A call has records of what it was refused; a session has none before its end."""
    if not (error.has_network and error.of_session):
        return ""
    place = f"{found[2]}:{found[3] or _PORTS[found[1]]}" if found[1] else "name:port"
    entry = f'allow_network=["{place}"]'
    return f"the server refused it, or no entry of allow_network= covers it: add {error.by(entry)}"


def _limit(_: ErrorFacts, found: re.Match[str]) -> str:
    try:
        return f"raise it, for instance {found[1]}={2 * float(found[2]):g}"
    except ValueError:
        return ""


def _asks_for_input(error: ErrorFacts, found: re.Match[str]) -> str:
    if error.of_session:
        asks = "input" in error.message
        return "the code asks for input: Session(on_input=) answers it" if asks else ""
    return "the program asks for input: give it stdin=" if found[0] else ""


# ---- data


def _no_key(error: ErrorFacts, _: re.Match[str]) -> str:
    return f"there is no such name; did you mean {error.meant()}?" if error.near else ""


def _no_variable(error: ErrorFacts, found: re.Match[str]) -> str:
    if not re.search(
        r"\bos\.environ\[[^\n]{1,200}(?:\n[^\n]{0,200}){0,4}\Z", error.traceback[-2000:]
    ):
        return ""
    given = f'env={{"{found[1]}": …}}'
    return f"variables of the host are not in the sandbox: {error.by(given)} gives this one"


def _no_json(_: ErrorFacts, found: re.Match[str]) -> str:
    kind = found[1]
    if kind in ("int64", "int32", "float32", "float16", "bool_", "bool", "uint8", "int8", "int16"):
        way = (
            "int(value), float(value) or bool(value), or json.dumps(…, default=lambda x: x.item())"
        )
    elif kind in ("ndarray", "Series", "Index"):
        way = "value.tolist()"
    elif kind == "DataFrame":
        way = 'value.to_dict("records"), or value.to_json()'
    elif kind in ("set", "frozenset", "dict_keys", "dict_values", "generator", "map", "zip"):
        way = "list(value)"
    elif kind in ("bytes", "bytearray"):
        way = "value.decode(), or base64"
    else:
        way = "json.dumps(…, default=str)"
    return f"JSON has no {kind}: use {way}"


def _not_utf8(_: ErrorFacts, found: re.Match[str]) -> str:
    byte, place = found[1], found[2]
    if byte == "0x8b" and place == "1":
        return "it is compressed with gzip: use gzip.open(path, 'rt')"
    if byte == "0xff" and place == "0":  # a JPEG picture begins with it, too
        return 'it is UTF-16 text, which takes encoding="utf-16", or no text: mode "rb" reads bytes'
    if byte == "0xfe" and place == "0":
        return 'it is UTF-16 text, by its first byte: use encoding="utf-16"'
    return 'it is not UTF-8 text: use encoding="latin-1" or "cp1252", or read bytes by mode "rb"'


_AWARE = (
    "make both timezone-aware, or both naive: .tz_localize('UTC') of pandas, "
    ".replace(tzinfo=timezone.utc) of datetime"
)
_SHAPES = "print the shapes of both: make them equal or 1 in each axis, by reshape, [:, None] or .T"
_CHAINED = "assign in one step: df.loc[rows, column] = value; or work on a df[…].copy()"
_REMOVED_METHODS = {
    "append": "pd.concat([df, other])",
    "iteritems": ".items()",
    "applymap": ".map()",
    "sort": ".sort_values()",
    "ix": ".loc or .iloc",
}


def _removed_method(_: ErrorFacts, found: re.Match[str]) -> str:
    instead = _REMOVED_METHODS.get(found[2])
    return f"pandas no longer has {found[1]}.{found[2]}: use {instead}" if instead else ""


_INSTEAD = {
    "float_": "np.float64",
    "complex_": "np.complex128",
    "Inf": "np.inf",
    "NaN": "np.nan",
    "infty": "np.inf",
}


def _numpy_alias(_: ErrorFacts, found: re.Match[str]) -> str:
    name = found[1] or found[2]
    return f"numpy no longer has np.{name}: use {_INSTEAD.get(name, name)}"


# ---- the table

ROWS = (
    Row("own limit", "SandboxTimeoutError SandboxMemoryError LimitExceeded",
        r"\b(\w{1,40})=([\d.]{1,12}) allowed", _limit),
    Row("missing package", "ModuleNotFoundError ImportError",
        r"No module named '([\w.]{1,200})'((?:; '[\w.]{1,200}' is not a package)?)", _module),
    Row("optional package", "ImportError ModuleNotFoundError",
        r"Missing optional dependency '([\w.-]{1,100})'"
        r"|^(\w{1,100}) (?:not found, please install it|is required for )"
        r"|Unable to find a usable engine; tried using: '(pyarrow)'", _optional),
    Row("name in a package", "ImportError",
        r"cannot import name '(\w{1,200})' from '([\w.]{1,200})'", _not_in_module),
    Row("name", "NameError", r"^name '(\w{1,100})' is not defined", _name),
    Row("input", "EOFError", r"EOF when reading a line|", _asks_for_input),
    Row("not Python", "SyntaxError", "", _of_ipython),
    Row("typography", "SyntaxError", r"^invalid (?:non-printable )?character ",
        "outside of texts and comments, code is plain ASCII: use straight quotes, a plain minus "
        "and plain spaces"),
    Row("no loop", "RuntimeError", r"^no running event loop$",
        "tasks run while code awaits: have an `await` outside functions in the same code of a "
        "session, or do it in a coroutine that asyncio.run() runs"),
    Row("running loop", "RuntimeError",
        r"^asyncio\.run\(\) cannot be called from a running event loop$",
        "await the coroutine instead: code that has an `await` outside functions runs on a loop"),
    Row("nested code", "RecursionError",
        r" during (?:compilation|ast construction)$| while traversing '\w+' node$",
        "the code is nested too deeply for Python: of long sums, chains of calls or of elif make "
        "several statements, a loop or a dict"),
    Row("recursion", "RecursionError", "",
        "the recursion has no end, or is deeper than sys.getrecursionlimit()"),
    Row("no terminals", "OSError", r"^out of pty devices", _NO_TERMINALS),
    Row("threads", "", r"^can't start new thread$", _no_thread),
    Row("no resolver", "", "Temporary failure in name resolution", _without_network(_NO_NETWORK)),
    Row("unknown host", "", "Name or service not known|No address associated with hostname",
        _not_allowed),
    Row("refused host", "HTTPError HTTPStatusError",
        r"^HTTP Error 403|^(?:403 Client Error: |Client error '403 ).{0,60}for url:? '?"
        r"(https?)://([\w.-]{1,253})(?::(\d{1,5}))?", _refused),
    Row("no room for an array", "", "Not enough free space to write", _no_room),
    Row("no directory", "OSError", "^Cannot save file into a non-existent directory",
        "make it before, by os.makedirs(…, exist_ok=True)"),
    Row("no file", "", _errno(errno.ENOENT, "No such file or directory",
                              "Failed to open local file"), _no_file),
    Row("privilege", "", _errno(errno.EPERM, "Operation not permitted"),
        "this needs a privilege that sandboxed code does not have"),
    Row("read-only", "", _errno(errno.EROFS, "Read-only file system") + "|"
        + _errno(errno.EACCES, "Permission denied"), _not_writable),
    Row("processes", "", _errno(errno.EAGAIN, "Resource temporarily unavailable"), _no_process),
    Row("open files", "", _errno(errno.EMFILE, "Too many open files"),
        "a process may have 1,024 files and sockets open: close those that are not in use"),
    Row("no room", "", _errno(errno.ENOSPC, "No space left on device"), _no_room),
    Row("no network", "", _errno(errno.ENETUNREACH, "Network is unreachable", "Connect call failed")
        + "|" + _errno(errno.EHOSTUNREACH, "No route to host", "Connect call failed"),
        _without_network(_NO_NETWORK)),
    Row("nothing listens", "", _errno(errno.ECONNREFUSED, "Connection refused",
                                      "Connect call failed"),
        _without_network("nothing listens there: the sandbox has a loopback of its own, and no "
                         "network")),
    Row("memory", "MemoryError _ArrayMemoryError", "", _no_memory),
    # text and JSON
    Row("not UTF-8", "UnicodeDecodeError",
        r"'utf-8' codec can't decode byte (0x[0-9a-f]{2}) in position (\d{1,19})", _not_utf8),
    Row("not ASCII", "UnicodeEncodeError", r"^'(?:ascii|latin-1|charmap)' codec can't encode",
        'write it as UTF-8: encoding="utf-8"'),
    Row("surrogates", "UnicodeEncodeError", "surrogates not allowed",
        'the text holds bytes that were not text: text.encode("utf-8", "replace").decode()'),
    Row("JSON: quotes", "JSONDecodeError", "^Expecting property name enclosed in double quotes",
        "JSON has double quotes, and no comma before a brace that closes: a Python literal is read "
        "by ast.literal_eval(text)"),
    Row("JSON: several values", "JSONDecodeError", "^Extra data",
        "there are several values: JSON Lines are read by [json.loads(line) for line in "
        "text.splitlines()]"),
    Row("JSON: byte order mark", "JSONDecodeError", "^Unexpected UTF-8 BOM",
        'the text begins with a byte order mark: read it with encoding="utf-8-sig"'),
    Row("JSON: no value", "JSONDecodeError", r"^Expecting value: line 1 column 1 \(char 0\)",
        "the text is empty, or is not JSON (an HTML page?): print(repr(text[:200])) shows it"),
    Row("JSON: cut", "JSONDecodeError", "^(?:Unterminated string|Expecting)",
        "the text is cut, or has a comma, a quote or a bracket too many or too few at that place"),
    Row("JSON: type", "TypeError", r"^Object of type (\w{1,100}) is not JSON serializable",
        _no_json),
    Row("JSON: path", "AttributeError", r"^'(?:str|PosixPath)' object has no attribute 'read'",
        "it takes an open file: with open(path) as file, or json.loads(text)"),
    # numbers and times
    Row("module of a class", "AttributeError",
        r"^module '(datetime)' has no attribute '(?:now|today|strptime|utcnow|fromisoformat)'",
        "the class has the module's name: from datetime import datetime"),
    Row("float of text", "ValueError", "^could not convert string to float",
        'pd.to_numeric(values, errors="coerce") turns what is not a number into NaN; remove '
        'thousands separators, currency signs and spaces first, as with text.replace(",", "")'),
    Row("int of text", "ValueError", r"^invalid literal for int\(\) with base 10",
        "int() takes digits alone: int(float(text)) for a fraction, and leave out what is empty"),
    Row("NaN to integer", "ValueError IntCastingNaNError",
        "[cC]annot convert (?:float NaN|non-finite values).{0,40}to integer",
        'integers have no NaN: .fillna(0), .dropna(), or .astype("Int64")'),
    Row("time zones", "TypeError",
        "offset-naive and offset-aware|tz-naive and tz-aware|tz-aware.{0,40}tz-naive", _AWARE),
    Row("time format", "ValueError", "^time data .{1,300} (?:does not|doesn't) match format",
        'pd.to_datetime(values, format="mixed") takes several formats, errors="coerce" makes NaT '
        "of the rest"),
    # pandas
    Row("truth of a Series", "ValueError", r"^The truth value of a (?:Series|DataFrame|Index) is",
        "use & | ~ with each condition in parentheses, or .any(), .all() or .empty"),
    Row("variable", "KeyError", r"^'(\w{1,100})'", _no_variable),
    Row("axis", "KeyError", r"not found in axis",
        "drop() takes labels of rows: df.drop(columns=[…]) drops columns"),
    Row("column", "KeyError ColumnNotFoundError", "", _no_key),
    Row("chained assignment", "SettingWithCopyError SettingWithCopyWarning ChainedAssignmentError",
        "", _CHAINED),
    Row("length of values", "ValueError",
        r"^Length of values \(\d{1,19}\) does not match length of index",
        "a column has one value for each row: give as many as len(df), a single one, or a Series "
        "with its index"),
    Row("length mismatch", "ValueError", "^Length mismatch: Expected axis has",
        "give one name for each column: df.shape says how many there are; df.rename(columns={…}) "
        "changes some"),
    Row("all scalars", "ValueError", "^If using all scalar values, you must pass an index",
        "put each value in a list, or pd.DataFrame([values])"),
    Row("merge of types", "ValueError", "^You are trying to merge on",
        "make the columns of both one type before, as by .astype(str)"),
    Row("duplicate labels", "ValueError InvalidIndexError",
        "duplicate (?:labels|axis)|only valid with uniquely valued Index",
        "the index has labels twice: .reset_index(drop=True), or df[~df.index.duplicated()]"),
    Row("accessor", "AttributeError", r"^Can only use \.(str|dt) accessor with",
        lambda _, found: "convert the column before: "
        + (".astype(str)" if found[1] == "str" else "pd.to_datetime(column)")),
    Row("removed method", "AttributeError",
        r"^'(DataFrame|Series|Styler)' object has no attribute '(\w{1,100})'", _removed_method),
    Row("text in a mean", "TypeError",
        r"^agg function failed|[cC]ould not convert .{0,500}to numeric|(?:does not support|Cannot "
        r"perform) (?:operation|reduction) '(?:mean|sum|std|median|var|prod)'",
        "give numeric_only=True, or choose the numeric columns"),
    Row("empty file", "EmptyDataError", "^No columns to parse from file",
        "the file is empty: look at its size, and at who writes it"),
    Row("CSV fields", "ParserError", r"Expected \d{1,9} fields.{0,40}, saw \d{1,9}",
        'it may have another sep=, which pd.read_csv(…, sep=None, engine="python") finds; '
        'on_bad_lines="skip" leaves such lines out'),
    # numpy
    Row("truth of an array", "ValueError",
        "^The truth value of an array with more than one element is ambiguous",
        "use & | ~ with each condition in parentheses, or .any() or .all()"),
    Row("broadcast", "ValueError", "could not be broadcast together|could not broadcast input",
        _SHAPES),
    Row("alignment", "ValueError", r"^shapes .{1,200} not aligned|^matmul: Input operand",
        "in a @ b the last axis of a is as long as the last but one of b: a.T or b.T may be meant"),
    Row("reshape", "ValueError", "^cannot reshape array of size",
        "the product of the new shape is the size: -1 in one place stands for what is left"),
    Row("inhomogeneous", "ValueError", "^setting an array element with a sequence",
        "the rows differ in length: pad them, or keep a list or dtype=object"),
    Row("index", "IndexError", r"is out of bounds for axis \d{1,3} with size",
        "indices begin at 0 and end before the size: print the shape"),
    Row("numpy alias", "AttributeError",
        r"module 'numpy' has no attribute '(float|int|bool|object|str|complex)'"
        r"|`np\.(float_|complex_|Inf|NaN|infty)` was removed", _numpy_alias),
)  # fmt: skip
