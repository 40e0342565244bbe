"""What to do about an error that happened inside a sandbox, from its type and message alone.

Pure functions over text; the text may be hostile and is never evaluated.
"""

from __future__ import annotations

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
_LAST = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_FRAME = re.compile(r'^\s+File "(?P<file>[^"\n]*)", line (?P<line>\d{1,9})')
_TEXT_LIMIT = 1 << 20


def hint_for(type_name: str, message: str) -> str:
    """One sentence, or "" where there is nothing to say."""
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
    if kind in ("gaierror", "ConnectionError", "URLError", "ConnectError", "ConnectTimeout"):
        return "there is no network inside: fetch the data outside and pass it as an argument"
    if "Network is unreachable" in message or "Name or service not known" in message:
        return "there is no network inside: fetch the data outside and pass it as an argument"
    if "Temporary failure in name resolution" in message:
        return "there is no network inside: fetch the data outside and pass it as an argument"
    if kind == "FileNotFoundError":
        return "no file of the host is inside: pass its content as an argument, or by files="
    if "Read-only file system" in message or kind == "PermissionError":
        return "only the working directory and /tmp can be written to"
    if kind == "EOFError" and "reading a line" in message:
        return "the program asks for input: give it stdin="
    if kind == "RecursionError":
        return "the recursion has no end, or is deeper than sys.getrecursionlimit()"
    if kind == "BlockingIOError" or "can't start new thread" in message:
        return "more processes or threads than pids= allows"
    return ""


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
    return ErrorInfo(kind, message, text, number, hint_for(kind, message))
