# SPDX-License-Identifier: Apache-2.0
"""Variables of `env=` that the interpreter reads at its start: values with which it would not start
are refused here, in its own words. Pure; safe on any thread.
"""

from __future__ import annotations

from collections.abc import Callable

from hutch._options.checks import _pairs, quoted

_ALLOCATORS = ("default", "debug", "malloc", "malloc_debug", "pymalloc", "pymalloc_debug")


def _pairs_of_env(name: str, value: object) -> tuple[tuple[str, str], ...]:
    """As `_pairs`; raises ValueError for a variable that no interpreter here can start with."""
    pairs = _pairs(name, value)
    for variable, text in pairs:
        if variable in _REFUSED:
            raise ValueError(
                f"env has {variable}: the sandbox has its own interpreter, which would not find "
                "its library: leave it out"
            )
        known = _ALLOWED.get(variable)
        if known is not None and text and not known[0](text):
            raise ValueError(f"env has {variable}={quoted(text)}: it is {known[1]}")
    return pairs


def _number(low: int, high: int, *others: str) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        whole = text.isascii() and text.isdecimal() and len(text) <= 20
        return text in others or (whole and low <= int(text) <= high)

    return check


_SWITCH: tuple[Callable[[str], bool], str] = (lambda text: text in ("0", "1"), '"0" or "1"')
_REFUSED = ("PYTHONHOME", "PYTHONPLATLIBDIR", "PYTHONEXECUTABLE")
_ALLOWED: dict[str, tuple[Callable[[str], bool], str]] = {
    "PYTHONHASHSEED": (
        _number(0, 4294967295, "random"),
        '"random", or a number from 0 to 4294967295',
    ),
    "PYTHONINTMAXSTRDIGITS": (
        lambda text: text == "0" or _number(640, 2147483647)(text),
        "0, or a number from 640 to 2147483647",
    ),
    "PYTHONTRACEMALLOC": (_number(0, 65535), "a number of frames from 0 to 65535"),
    "PYTHONUTF8": _SWITCH,
    "PYTHONMALLOC": (lambda text: text in _ALLOCATORS, "one of " + ", ".join(_ALLOCATORS)),
    "PYTHONPROFILEIMPORTTIME": (
        lambda text: not text.lstrip("+- \t").isdecimal() or text in ("0", "1", "2"),
        '"1" or "2"',
    ),
    "PYTHON_CONTEXT_AWARE_WARNINGS": _SWITCH,
    "PYTHON_CPU_COUNT": (
        _number(1, 2147483647, "default"),
        '"default", or a number from 1 to 2147483647',
    ),
    "PYTHON_FROZEN_MODULES": (lambda text: text in ("on", "off"), '"on" or "off"'),
    "PYTHON_THREAD_INHERIT_CONTEXT": _SWITCH,
    "PYTHON_GIL": (lambda text: text == "1", '"1": the interpreter has a GIL'),
}
