# SPDX-License-Identifier: Apache-2.0
"""What to do about an error that happened inside a sandbox, from what is reported of it alone.

Pure functions over text; the text may be hostile and is never evaluated.
"""

from __future__ import annotations

import errno
import re
import sys

from hutch._outcome import ErrorInfo

# What is imported under another name than it is installed by.
DISTRIBUTIONS = {
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "Crypto": "pycryptodome",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "fitz": "pymupdf",
    "git": "GitPython",
    "jwt": "PyJWT",
    "magic": "python-magic",
    "OpenSSL": "pyOpenSSL",
    "PIL": "pillow",
    "pptx": "python-pptx",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
# Those that no project has as its name, or only one that points to the other.
NO_PROJECTS = frozenset(("cv2", "OpenSSL", "PIL", "skimage", "sklearn", "yaml"))
_LAST = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_FRAME = re.compile(r'^\s+File "(?P<file>[^"\n]*)", line (?P<line>\d{1,9})')
_TEXT_LIMIT = 1 << 20


def hint_for(
    type_name: str,
    message: str,
    traceback: str = "",
    *,
    has_network: bool = False,
    limit: str = "",
) -> str:
    """One sentence, or "" where there is nothing to say. `has_network`: whether the call was given
    one. `limit`: the one that the error is of; "": none.
    """
    kind = type_name.rsplit(".", 1)[-1]
    if kind in ("ModuleNotFoundError", "ImportError"):
        missing = re.search(r"No module named '([\w.]+)'", message)
        if missing:
            top = missing.group(1).split(".", 1)[0]
            if top == "hutch":
                return "Hutch is not inside the sandbox: call the function from outside instead"
            if top in sys.stdlib_module_names:
                return f"{top} is a part of Python that is not inside the sandbox"
            name = DISTRIBUTIONS.get(top, top)
            return (
                f'add dependencies=["{name}"] if it is a package, modules=["{top}"] if it is yours'
            )
    if kind == "EOFError" and "reading a line" in message:
        return "the program asks for input: give it stdin="
    if kind == "SyntaxError":
        return _of_ipython(traceback)
    if kind == "RecursionError":
        return "the recursion has no end, or is deeper than sys.getrecursionlimit()"
    where, line = _last_frame(traceback)
    if message.startswith("out of pty devices") and kind == "OSError":
        return _NO_TERMINALS
    if message == "can't start new thread":
        own = line.startswith("raise ") or limit not in ("", "pids")
        return "" if own else _TOO_MANY
    if not has_network and any(text in message for text in _NO_NAMES):
        return _NO_NETWORK
    if "Not enough free space to write" in message:  # numpy
        return _NO_ROOM
    return _hint_of_errno(_errno_in(message), message, where, line, has_network, limit)


def _hint_of_errno(
    number: int, message: str, where: str, line: str, has_network: bool, limit: str
) -> str:
    path = _PATH.search(message)
    name = path.group(2) if path else ""
    if number == errno.ENOENT:
        if re.search(r"\b(openpty|forkpty)\b", line):
            return _NO_TERMINALS
        if where in _STARTING and re.fullmatch(r"[\w.+-]{1,100}", name):
            return f"the sandbox has no program {name}: a package of dependencies= may bring it"
        return "no file of the host is inside: pass its content as an argument, or by files="
    if number == errno.EPERM:
        return "it takes a privilege that no sandboxed code has"
    if number == errno.EROFS or (number == errno.EACCES and _is_elsewhere(name)):
        return "only the working directory and /tmp can be written to"
    if number == errno.EAGAIN and limit in ("", "pids"):
        return _TOO_MANY if where in _STARTING or _FORK.search(line) else ""
    if number == errno.EMFILE:
        return "a process may have 1,024 files and sockets open: close those that are done with"
    if number == errno.ENOSPC and not limit:
        return _NO_ROOM
    if not has_network:
        if number in (errno.ENETUNREACH, errno.EHOSTUNREACH):
            return _NO_NETWORK
        if number == errno.ECONNREFUSED:
            return "nothing listens there: the sandbox has a loopback of its own, and no network"
    return ""


def _of_ipython(traceback: str) -> str:
    """For a line that only IPython would run."""
    line = _SYNTAX_LINE.search(traceback[-_TEXT_LIMIT:])
    if line is None:
        return ""
    if re.match(r"\s*(pip|conda|uv)\b|.*\bpip3?\s+install\b", line.group(2)):
        return "nothing is installed from inside: name the package in dependencies= outside"
    if line.group(1) == "%":
        return "this is Python, not IPython: there are no magic commands"
    return (
        'this is Python, not a shell: run a program by subprocess.run(["ls", "-la"]), and packages '
        "are named in dependencies= outside"
    )


_NO_NETWORK = "the sandbox has no network: fetch the data outside and pass it as an argument"
_NO_TERMINALS = "the sandbox has no pseudo-terminals: use pipes"
_TOO_MANY = "there are more processes or threads than pids= allows: start fewer, or raise it"
_NO_ROOM = "there was no room for it: raise disk_mb= if it was written to the scratch"
# Messages of failed name lookups.
_NO_NAMES = (
    "Temporary failure in name resolution",
    "Name or service not known",
    "No address associated with hostname",
)
# What the kernel's errors are called. Code that raises one itself mostly has words of its own.
_ERRORS = {
    errno.EPERM: ("Operation not permitted",),
    errno.ENOENT: ("No such file or directory", "Failed to open local file"),
    errno.EAGAIN: ("Resource temporarily unavailable",),
    errno.EACCES: ("Permission denied",),
    errno.EMFILE: ("Too many open files",),
    errno.ENOSPC: ("No space left on device",),
    errno.EROFS: ("Read-only file system",),
    errno.ENETUNREACH: ("Network is unreachable", "Connect call failed"),
    errno.ECONNREFUSED: ("Connection refused", "Connect call failed"),
    errno.EHOSTUNREACH: ("No route to host", "Connect call failed"),
}
_ERRNO = re.compile(r"\[Errno (\d{1,3})\] ([^\n]{0,60})")
_OS_ERROR = re.compile(r"([^\n]{0,60}) \(os error (\d{1,3})\)")  # Rust's
_PATH = re.compile(r": b?(['\"])([^\n]{1,4096}?)\1")
_SYNTAX_LINE = re.compile(r'^ {2}File "[^"\n]*", line \d+\n +([!%])([^\n]*)', re.M)
_LAST_FRAME = re.compile(r'^ {2,}File "[^"\n]*", line \d+, in ([^\n]*)\n([^\n]*)', re.M)
_STARTING = frozenset(("_execute_child", "_posix_spawn", "_execvpe", "_spawnvef"))
_FORK = re.compile(r"\b(os\.fork|forkpty|fork_exec|posix_spawnp?)\b")
# Directories of every sandbox, of which the first is where it works.
_SCRATCH = ("/work", "/tmp", "/var/tmp", "/dev/shm")


def _errno_in(message: str) -> int:
    """The errno that a message names, or 0."""
    found = _ERRNO.search(message)
    if found:
        number, text = int(found.group(1)), found.group(2)
        return number if text.startswith(_ERRORS.get(number, ("\n",))) else 0
    found = _OS_ERROR.search(message)
    if found:
        number, text = int(found.group(2)), found.group(1)
        return number if text.endswith(_ERRORS.get(number, ("\n",))) else 0
    return 0


def _last_frame(traceback: str) -> tuple[str, str]:
    """The function that raised it, and its line, where they are known."""
    where, line = "", ""
    for found in _LAST_FRAME.finditer(traceback[-_TEXT_LIMIT:]):
        where, line = found.group(1), found.group(2).strip()
    return where, line


def _is_elsewhere(path: str) -> bool:
    """Whether a path is one that nothing can be written to."""
    return path.startswith("/") and not any(f"{path}/".startswith(f"{one}/") for one in _SCRATCH)


def explain(text: str) -> ErrorInfo:
    """Type, message, line and hint from the text of any Python traceback."""
    if not isinstance(text, str):
        raise TypeError(f"explain takes a traceback as str, not {type(text).__name__}")
    lines = text[-_TEXT_LIMIT:].rstrip().splitlines()
    start = 0
    for i, line in enumerate(lines):
        if line.startswith("Traceback (most recent call last)"):
            start = i  # the last one: those before are what it came from
    number: int | None = None
    kind, message = "", ""
    for i in range(start, len(lines)):
        frame = _FRAME.match(lines[i])
        if frame:
            number = int(frame.group("line"))
        last = _LAST.match(lines[i])
        if last and not lines[i].startswith("Traceback") and (number is not None or not kind):
            kind = last.group("type")
            message = "\n".join([last.group("message") or "", *lines[i + 1 :]]).rstrip()
            break
    return ErrorInfo(kind, message, text, number, hint_for(kind, message, text))
