# SPDX-License-Identifier: Apache-2.0
"""What a session shows: the forms of a value by type of media, `display` and `input`, figures, and
`IPython.display`, which is the installed one or a small one of ours. In the user process.
"""

from __future__ import annotations

import binascii
import builtins
import importlib.machinery
import importlib.util
import io
import sys
from collections.abc import Callable
from typing import Any

from dialogue import Dialogue

MOST_FIGURES = 20  # shown at the end of a call
PICTURES = ("image/png", "image/jpeg")
REPRS = (
    ("text/html", "_repr_html_"),
    ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("text/markdown", "_repr_markdown_"),
    ("text/latex", "_repr_latex_"),
    ("application/json", "_repr_json_"),
)


def bundle_of(value: Any) -> dict[str, Any]:
    """Its forms by type of media. What one of its methods raises leaves that form out."""
    bundle: dict[str, Any] = {}
    kind = type(value)
    if callable(getattr(kind, "_repr_mimebundle_", None)):
        try:
            found = value._repr_mimebundle_(include=None, exclude=None)
            found = found[0] if isinstance(found, tuple) else found
            bundle.update((str(media), of_form(media, form)) for media, form in found.items())
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
            bundle[media] = of_form(media, form)
    if kind.__name__ == "Figure" and kind.__module__ == "matplotlib.figure":
        bundle.setdefault("image/png", png_of(value))
    try:
        bundle.setdefault("text/plain", repr(value))
    except Exception:
        pass
    return bundle


def of_form(media: Any, form: Any) -> Any:
    """Pictures are bytes; IPython and others have them as base64."""
    if media in PICTURES and isinstance(form, str):
        try:
            return binascii.a2b_base64(form)
        except ValueError:
            return form
    return form if isinstance(form, (str, bytes, dict, list)) else str(form)


def png_of(figure: Any) -> bytes:
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


# ---- display() and input()


def add_display(dialogue: Dialogue) -> None:
    """`display` and `input`, also where libraries look for them, now or once they are loaded."""

    def display(*values: Any, raw: bool = False, display_id: Any = None, **_: Any) -> Any:
        """Shows each value's forms to the caller. `raw`: the values are such forms, by type."""
        for value in values:
            if raw:
                forms = {str(media): of_form(media, form) for media, form in value.items()}
            else:
                forms = bundle_of(value)
            dialogue.say("display", forms)
        return None if display_id is None or display_id is False else Handle(display)

    def ask_for_input(prompt: Any = "", /) -> str:
        if prompt != "":
            print(prompt, end="")
        return str(dialogue.ask("input", str(prompt)))

    vars(builtins)["display"] = display
    vars(builtins)["input"] = ask_for_input
    after_import(
        {
            "IPython.core.display_functions": lambda module: use_in_ipython(module, display),
            "matplotlib.pyplot": lambda pyplot: use_in_pyplot(pyplot, dialogue),
            "plotly.io": lambda module: use_in_plotly(module, display),
        }
    )
    sys.meta_path.append(InsteadOfIPython(display))


class Handle:
    """Of something that is shown, which shows what takes its place."""

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display

    def display(self, value: Any, **_: Any) -> None:
        self._display(value)

    update = display


class AfterImport:
    """A finder of sys.meta_path, which lets the others find. Modules of these names are given to
    their functions once they are loaded.
    """

    def __init__(self, then: dict[str, Callable[[Any], None]]) -> None:
        self.then = then
        self.is_asking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.then or self.is_asking:
            return None
        self.is_asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.is_asking = False
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return spec
        load = loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            then = self.then.pop(name, None)
            if then is not None:
                then(module)

        loader.exec_module = exec_module
        return spec


def after_import(then: dict[str, Callable[[Any], None]]) -> None:
    for name in [*then]:
        module = sys.modules.get(name)
        if module is not None:
            then.pop(name)(module)
    sys.meta_path.insert(0, AfterImport(then))


# ---- figures


def show_figures(dialogue: Dialogue) -> None:
    """The figures of pyplot that are open, which are closed."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or not hasattr(pyplot, "get_fignums"):  # its import failed
        return
    for number in pyplot.get_fignums()[:MOST_FIGURES]:
        dialogue.say("display", bundle_of(pyplot.figure(number)))
    pyplot.close("all")


def use_in_pyplot(pyplot: Any, dialogue: Dialogue) -> None:
    def show(*_: Any, **__: Any) -> None:
        """Shows the open figures to the caller, and closes them."""
        show_figures(dialogue)

    pyplot.show = show


def use_in_plotly(module: Any, display: Callable[..., Any]) -> None:
    usual = module.show

    def show(figure: Any, renderer: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Shows the figure to the caller, unless by a renderer that is named."""
        if renderer is None and is_rich(figure):
            display(figure)
            return None
        return usual(figure, renderer, *args, **kwargs)

    module.show = show


# ---- IPython


def use_in_ipython(module: Any, display: Callable[..., Any]) -> None:
    """The display() of an IPython that is installed prints, where no shell of its own runs."""

    def publish(data: Any, *_: Any, **__: Any) -> None:
        display(data, raw=True)

    others = [one for name, one in [*sys.modules.items()] if name.startswith("IPython.")]
    for name, ours in (("display", display), ("publish_display_data", publish)):
        theirs = getattr(module, name)
        for one in others:
            if vars(one).get(name) is theirs:
                setattr(one, name, ours)


IPYTHON = """
class _Shown:
    media = ""
    def __init__(self, data=None, url=None, filename=None, **_):
        if data is None and filename is not None:
            with open(filename, "rb") as file: data = file.read()
            if not self.media.startswith("image/p"): data = data.decode()
        self.data, self.url, self.filename = data, url, filename
    def _repr_mimebundle_(self, include=None, exclude=None): return {self.media: self.data}
    def __repr__(self): return f"<IPython.core.display.{type(self).__name__} object>"
class HTML(_Shown): media = "text/html"
class Markdown(_Shown): media = "text/markdown"
class Latex(_Shown): media = "text/latex"
class Math(Latex):
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {self.media: "$\\\\displaystyle " + self.data.strip("$") + "$"}
class SVG(_Shown): media = "image/svg+xml"
class JSON(_Shown): media = "application/json"
class Javascript(_Shown): media = "application/javascript"
class Pretty(_Shown): media = "text/plain"
class Image(_Shown):
    media = "image/png"
    def __init__(self, data=None, url=None, filename=None, **_):
        if isinstance(data, str): data, filename = None, data
        super().__init__(data, url, filename)
        if (self.data or b"")[:2] == b"\\xff\\xd8": self.media = "image/jpeg"
    def _repr_mimebundle_(self, include=None, exclude=None):
        if self.data is None: return {"text/html": f'<img src="{self.url}"/>'}
        return {self.media: self.data}
def clear_output(wait=False): pass
"""


class InsteadOfIPython:
    """The last finder and loader of modules: of `IPython.display` where IPython is not installed.
    Nothing is looked for before it is imported, since that takes longer than an exec. There is no
    shell, as libraries find by get_ipython(), which takes them their plain ways.
    """

    def __init__(self, display: Callable[..., Any]) -> None:
        self.display = display

    def find_spec(self, name: str, *_: Any) -> Any:
        if name not in ("IPython", "IPython.core", "IPython.display"):
            return None
        loader: Any = self
        parent = sys.modules.get("IPython")
        if name != "IPython" and getattr(parent, "__loader__", None) is not self:
            return None
        return importlib.machinery.ModuleSpec(name, loader, is_package=True)

    def create_module(self, _: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        if module.__name__ == "IPython.display":
            exec(IPYTHON, module.__dict__)
            module.display = self.display
            module.publish_display_data = lambda data, *_, **__: self.display(data, raw=True)
        elif module.__name__ == "IPython":
            core = importlib.import_module("IPython.core")
            core.display = importlib.import_module("IPython.display")  # type: ignore[attr-defined]
            sys.modules["IPython.core.display"] = core.display
            module.get_ipython = lambda: None
            # what its interface is like
            module.version_info, module.__version__ = (9, 0, 0, ""), "9.0.0"
