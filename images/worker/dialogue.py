# SPDX-License-Identifier: Apache-2.0
"""What a call says to its caller, and asks of it, while it runs: tools, display, input, yields.

A thread that asks waits for its answer with the lock held, so that threads take turns. Works in the
process of the call only, and while a call runs: afterwards it raises RuntimeError.
"""

from __future__ import annotations

import builtins
import mmap
import os
import pickle
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

import encode as encoding
from _hutch_cell import (  # type: ignore[import-not-found,unused-ignore]
    ANSWER,
    ASK,
    MAX_PAYLOAD,
    MOST_IN_PARTS,
    PART,
    SAY,
)

TOOLS = "hutch_tools"
SAID_AT_ONCE = 8  # items that are yielded without waiting for an answer
QUICK_NS = 1_000_000  # between two of them
MOST_FIGURES = 20  # shown at the end of a call
_getpid = os.getpid


class ToolError(Exception):
    """A tool of the host's raised: its type and message."""


def error_of(name: str, message: str) -> Exception:
    """What the host raised: the builtin exception of that name, or a ToolError so named."""
    kind = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = type(name, (ToolError,), {"__module__": TOOLS})
    try:
        error: Exception = kind(message)
    except Exception:  # one that takes other arguments
        error = ToolError(f"{name}: {message}")
    return error


class StopExec(BaseException):
    """A tool of the host's ended the code that called it."""


class Dialogue:
    """Of one process. `flush` writes what was printed, which is to arrive first."""

    def __init__(self, cell: Any, fd: int, flush: Callable[[], None]) -> None:
        self.cell = cell
        self.fd = fd
        self.flush = flush
        self.lock = threading.RLock()
        self.pid = _getpid()
        self.call_id = 0  # 0: no call runs
        self.number = 0
        self.nested: Callable[[Any], list[Any]] | None = None
        self.running: list[object] = []  # nested calls, the innermost last
        self.turn = threading.Condition(self.lock)

    def begin(self, call_id: int, nested: Callable[[Any], list[Any]] | None = None) -> None:
        """`nested` runs what the caller wants run before it answers."""
        self.call_id, self.number, self.nested = call_id, 0, nested
        with self.turn:
            self.running.clear()
            self.turn.notify_all()

    def end(self) -> None:
        """Once nobody waits for an answer."""
        with self.lock:
            self.call_id = 0

    def say(self, topic: str, *content: Any) -> None:
        with self.lock:
            self._send(SAY, [topic, *content])

    def ask(self, topic: str, *content: Any) -> Any:
        """The answer, or raises what the caller answered with."""
        kind, value, *rest = self._exchange([topic, *content])
        while kind == "run" and self.nested is not None:
            mine = rest[0]
            try:
                reply = self.nested(value)
            except BaseException:
                self._ran(mine)
                raise
            kind, value, *rest = self._exchange(["nested", *reply], mine)
        if kind == "ok":
            return value
        if kind == "stop":
            raise StopExec()
        raise error_of(value, rest[0])

    def _exchange(self, content: list[Any], mine: object = None) -> Any:
        """`mine`: the nested call whose reply this is, which comes after those within it."""
        with self.turn:
            self.turn.wait_for(lambda: mine not in self.running[:-1])
            self._ran(mine)
            self._send(ASK, content)
            try:
                answer = self._receive()
            except (ImportError, AttributeError) as error:
                text = f"it ran, but its result cannot be loaded here: {error}"
                raise ToolError(text) from None
            if answer[0] == "run":
                answer = (*answer, object())
                self.running.append(answer[-1])
            return answer

    def _ran(self, mine: object) -> None:
        with self.turn:
            if mine in self.running:
                self.running.remove(mine)
                self.turn.notify_all()

    def offer(self, item: Any, waits: bool) -> bool:
        """Sends what was yielded. `waits`: until the caller wants more; False: it wants none."""
        with self.lock:
            self._send(ASK if waits else SAY, ["yield", item], True)
            return not waits or self._receive()[1] is True

    def _send(self, kind: int, content: list[Any], named: bool = False) -> None:
        if self.call_id == 0 or self.pid != _getpid():
            raise RuntimeError(
                "tools, display(), input() and yield work only while a call runs, and in its own "
                "process"
            )
        try:
            payload = encoding.encode(content, MOST_IN_PARTS, named)
        except encoding.Unencodable as error:
            text = f"this is no data that can be sent: it has {error.type_name} in it"
            raise TypeError(text) from None
        except encoding.TooLarge as error:
            text = f"{error.size:,} bytes cannot be sent at once: at most {MOST_IN_PARTS:,}"
            raise ValueError(text) from None
        data = bytearray(payload.size)
        for at, chunk in payload.chunks():
            data[at : at + chunk.nbytes] = chunk
        self.flush()
        self.number += 1
        head = (self.fd, kind, len(payload.body), self.call_id, self.number, len(data))
        if len(data) <= MAX_PAYLOAD:
            self.cell.send(*head, data)
            return
        for at in range(0, len(data), MAX_PAYLOAD):
            piece = data[at : at + MAX_PAYLOAD]
            self.cell.send(self.fd, PART, 0, self.call_id, 0, len(data), piece)
        self.cell.send(*head)

    def _receive(self) -> Any:
        while True:
            frame = self.cell.recv(self.fd)
            if frame is None:
                os._exit(0)
            kind, _, call_id, number, _, payload, descriptors = frame
            if kind == ANSWER and call_id == self.call_id and number == self.number:
                break
            for fd in descriptors:  # of one that was interrupted while it waited
                os.close(fd)
        if not descriptors:
            return pickle.loads(payload)
        fd = descriptors[0]
        try:
            size = os.fstat(fd).st_size
            with mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as content:
                return pickle.loads(content[:])
        finally:
            os.close(fd)


def send_items(dialogue: Dialogue, made: Any) -> Any:
    """Sends what a generator yields, as long as the caller takes it; what it returns."""
    if isinstance(made, types.AsyncGeneratorType):
        import asyncio

        return asyncio.run(_send_async(dialogue, made))
    pace = Pace()
    try:
        while dialogue.offer(next(made), pace.waits()):
            pass
    except StopIteration as ended:
        return ended.value
    finally:
        made.close()
    return None


async def _send_async(dialogue: Dialogue, made: Any) -> None:
    pace = Pace()
    try:
        async for item in made:
            if not dialogue.offer(item, pace.waits()):
                break
    finally:
        await made.aclose()


class Pace:
    """Whether an item waits for the caller: one in so many of those that follow at once, and each
    that comes later, so that a caller that stops is heard before the next.
    """

    def __init__(self) -> None:
        self.count = 0
        self.last = 0

    def waits(self) -> bool:
        now = time.monotonic_ns()
        quick, self.last = now - self.last < QUICK_NS, now
        self.count = self.count + 1 if quick else 0
        return self.count % SAID_AT_ONCE == 0


def add_tools(dialogue: Dialogue, tools: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Makes a function of each (name, documentation), in `hutch_tools`; them by name."""
    module = types.ModuleType(TOOLS, "The caller's tools.")
    stubs = {}

    def call(name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Calls the tool of that name."""
        return dialogue.ask("tool", name, plain(list(args)), plain(kwargs))

    def search(text: str = "") -> list[str]:
        """The names of the tools whose name or documentation has this text."""
        return [name for name, doc in tools if text.lower() in f"{name} {doc}".lower()]

    module.call, module.search = call, search  # type: ignore[attr-defined]
    for name, documentation in tools:
        stub = stub_of(call, name, documentation)
        setattr(module, name, stub)
        stubs[name] = stub
    sys.modules[TOOLS] = module
    return stubs


def plain(value: Any, depth: int = 0) -> Any:
    """Dataclasses, models, named tuples and enums as what they are made of, for a tool's arguments:
    the host has classes of its own.
    """
    kind: Any = type(value)
    if depth > 100 or kind in (str, int, float, bool, bytes, type(None)):
        return value
    if kind is dict:
        return {plain(key, depth + 1): plain(one, depth + 1) for key, one in value.items()}
    if kind in (list, set, frozenset) or issubclass(kind, tuple):
        made = [plain(one, depth + 1) for one in value]
        if kind is set or kind is frozenset:
            return kind(made)
        return made if kind is list else tuple(made)
    if "__dataclass_fields__" in dir(kind):
        return {name: plain(getattr(value, name), depth + 1) for name in kind.__dataclass_fields__}
    if callable(getattr(kind, "model_dump", None)):
        return plain(value.model_dump(), depth + 1)
    enum = sys.modules.get("enum")
    if enum is not None and isinstance(value, enum.Enum):
        return plain(value.value, depth + 1)
    if kind.__module__ == "numpy" and callable(getattr(kind, "item", None)):
        return value.item() if getattr(value, "ndim", 1) == 0 else value.tolist()
    return value


def stub_of(call: Callable[..., Any], name: str, documentation: str) -> Any:
    def stub(*args: Any, **kwargs: Any) -> Any:
        return call(name, *args, **kwargs)

    stub.__name__ = stub.__qualname__ = name
    stub.__module__ = TOOLS
    stub.__doc__ = documentation
    return stub


# ---- what is shown

REPRS = (
    ("text/html", "_repr_html_"),
    ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("text/markdown", "_repr_markdown_"),
    ("text/latex", "_repr_latex_"),
    ("application/json", "_repr_json_"),
)


def bundle_of(value: Any, plain: bool = True) -> dict[str, Any]:
    """Its forms by type of media. What one of its methods raises leaves that form out."""
    bundle: dict[str, Any] = {}
    kind = type(value)
    if callable(getattr(kind, "_repr_mimebundle_", None)):
        try:
            found = value._repr_mimebundle_()
            found = found[0] if isinstance(found, tuple) else found
            bundle.update((str(key), of_form(form)) for key, form in found.items())
        except Exception:
            pass
    for media, name in REPRS:
        if media in bundle or not callable(getattr(kind, name, None)):
            continue
        try:
            form = getattr(value, name)()
        except Exception:
            continue
        form = form[0] if isinstance(form, tuple) else form
        if form is not None:
            bundle[media] = of_form(form)
    if kind.__name__ == "Figure" and kind.__module__ == "matplotlib.figure":
        bundle.setdefault("image/png", png_of(value))
    if plain and (bundle or plain is True):
        try:
            bundle.setdefault("text/plain", repr(value))
        except Exception:
            pass
    return bundle


def of_form(form: Any) -> Any:
    return form if isinstance(form, (str, bytes, dict, list)) else str(form)


def png_of(figure: Any) -> bytes:
    import io

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    return buffer.getvalue()


def is_rich(value: Any) -> bool:
    kind = type(value)
    if kind.__module__ == "builtins":
        return False
    names = ("_repr_mimebundle_", *(name for _, name in REPRS))
    return any(callable(getattr(kind, name, None)) for name in names) or (
        kind.__module__ == "matplotlib.figure"
    )


IPYTHON = """
class _Shown:
    media = ""
    def __init__(self, data=None, **_): self.data = data
    def _repr_mimebundle_(self, **_): return {self.media: self.data}
    def __repr__(self): return f"<{type(self).__name__}>"
class HTML(_Shown): media = "text/html"
class Markdown(_Shown): media = "text/markdown"
class Latex(_Shown): media = "text/latex"
class SVG(_Shown): media = "image/svg+xml"
class JSON(_Shown): media = "application/json"
class Image(_Shown):
    media = "image/png"
    def __init__(self, data=None, filename=None, **_):
        if data is None: data = open(filename, "rb").read()
        self.data = data
        if data[:2] == b"\\xff\\xd8": self.media = "image/jpeg"
def clear_output(wait=False): pass
"""


def add_ipython() -> None:
    """`IPython.display`, where IPython is not installed."""
    import importlib.util

    if "IPython" in sys.modules or importlib.util.find_spec("IPython") is not None:
        return
    top, module = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    exec(IPYTHON, module.__dict__)
    module.display = builtins.display  # type: ignore[attr-defined]
    top.display = module  # type: ignore[attr-defined]
    sys.modules["IPython"], sys.modules["IPython.display"] = top, module


def add_display(dialogue: Dialogue) -> None:
    """`display` and `input`, and pictures of matplotlib where that is loaded."""

    def display(*values: Any, raw: bool = False, **_: Any) -> None:
        """Shows each value's forms to the caller. `raw`: the values are such forms, by type."""
        for value in values:
            forms = {str(k): of_form(v) for k, v in value.items()} if raw else bundle_of(value)
            dialogue.say("display", forms)

    def ask_for_input(prompt: Any = "", /) -> str:
        if prompt != "":
            print(prompt, end="")
        return str(dialogue.ask("input", str(prompt)))

    vars(builtins)["display"] = display
    vars(builtins)["input"] = ask_for_input
    add_ipython()


def show_figures(dialogue: Dialogue) -> None:
    """The figures of pyplot that are open, which are closed."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return
    for number in pyplot.get_fignums()[:MOST_FIGURES]:
        dialogue.say("display", bundle_of(pyplot.figure(number)))
    pyplot.close("all")


def prepare_figures(dialogue: Dialogue) -> None:
    """Has plt.show() show to the caller, where pyplot is loaded."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or getattr(pyplot.show, "__module__", "") == __name__:
        return

    def show(*_: Any, **__: Any) -> None:
        show_figures(dialogue)

    show.__module__ = __name__
    pyplot.show = show  # type: ignore[attr-defined]
