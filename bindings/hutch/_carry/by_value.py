# SPDX-License-Identifier: Apache-2.0
"""What stands in a pickle for a sandboxed function, which another process of the host loads.

It travels as a plain function does. cloudpickle, and the copies of it that joblib and Ray have,
write a function of `__main__` and one without a name by value. pickle writes one of `__main__` by
its name. pickle cannot write one that has no name: it is given bytes of cloudpickle.

Nothing here loads what came out of a sandbox. Safe on any thread.
"""

from __future__ import annotations

import importlib
import pickle
import re
import sys
import threading
import warnings
from types import FunctionType
from typing import Any, Protocol

import cloudpickle  # type: ignore[import-untyped,unused-ignore]

from hutch._callers import callers_level
from hutch._carry import secrets
from hutch._carry.functions import function_bytes
from hutch._carry.survey import Survey
from hutch._errors import SerializationError
from hutch._options.options import Options
from hutch._options.pickled import packed, unpacked

_searching = threading.local()  # `now`: whether this thread pickles only to search the bytes


class Maker(Protocol):
    """Makes targets of one function. `plain`: the function, or None where it is given as text.
    `is_searched`: whether it was searched for what no pickle may hold.
    """

    is_searched: bool

    @property
    def plain(self) -> Any: ...
    @property
    def name(self) -> str: ...
    def __call__(self, options: Options, nonce: str) -> Any: ...


class Owner(Protocol):
    """A sandboxed function. `_by_name`: how it is pickled by a name; None: it has none."""

    def _by_name(self) -> Any: ...


def name_of(value: Any) -> str:
    """The name by which its module has it; "": there is none."""
    name: str = getattr(value, "__qualname__", "")
    found: Any = sys.modules.get(value.__module__)
    for part in name.split("."):
        found = getattr(found, part, None)
    return name if found is value else ""


def are_found_by_name(module: str) -> bool:
    """Whether every pickler writes what that module has by name."""
    loaded = sys.modules.get("cloudpickle")
    by_value = loaded.list_registry_pickle_by_value() if loaded is not None else ()
    return module != "__main__" and not any(
        module == one or module.startswith(f"{one}.") for one in by_value
    )


class Parts:
    """What a sandboxed function is made of. Their pickle holds the values, so what no pickle may
    hold is refused here.
    """

    def __init__(self, maker: Maker, options: Options, bound: tuple[Any, ...]) -> None:
        self.maker = maker
        self.options = options
        self.bound = bound

    def __reduce__(self) -> Any:
        given = pickled_options(self.options)
        plain, refuses = self.maker.plain, self.options.refuse_secrets
        is_within = getattr(_searching, "now", False)
        if plain is not None and not is_within and (refuses or not self.maker.is_searched):
            _search(plain, self.options)
            self.maker.is_searched = True
        return _loaded_parts, (self.maker, given, pickled_instance(self.bound, self.options))


def _loaded_parts(maker: Maker, given: dict[str, Any], bound: tuple[Any, ...]) -> Parts:
    return Parts(maker, unpacked(given), bound)


def stands_in(owner: Owner, parts: Parts) -> tuple[Any, Any]:
    """What stands for a sandboxed function in a pickle: one for it as it is found by its name, the
    other for its content.
    """
    if parts.maker.plain is None:
        return None, parts
    return _StandIn(owner, None), _StandIn(owner, parts)


class _StandIn:
    """cloudpickle asks by isinstance, and sees a function that returns the Parts: it writes that by
    value, and whatever it refers to once, also in circles. pickle looks at the type, which is none
    of functions: it writes the owner by its name, or, without one, bytes of cloudpickle.
    """

    __slots__ = ("_function", "_owner", "_has_parts")
    __class__ = property(lambda self: FunctionType)

    def __init__(self, owner: Owner, parts: Parts | None) -> None:
        def function() -> Parts | None:
            return parts

        self._function = function
        self._owner = owner
        self._has_parts = parts is not None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __reduce_ex__(self, protocol: object) -> Any:
        by_name = self._owner._by_name()
        if type(by_name) is str:
            return _found, (self._owner.__module__, by_name)
        if by_name is not None:
            return by_name
        if self._has_parts:
            return pickle.loads, (cloudpickle.dumps(self._owner),)
        return type(None), ()


def _found(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def pickled_options(options: Options) -> dict[str, Any]:
    """Refuses, or warns of, the value of an environment variable."""
    for key, value in options.env:
        data = pickle.dumps(value)
        sentence = secrets.sentence_for(f"env[{key!r}]", value, data, frozenset())
        if sentence:
            _tell(sentence, options)
    return packed(options)


def pickled_instance(bound: tuple[Any, ...], options: Options) -> tuple[Any, ...]:
    """Refuses, or warns of, the value of an environment variable that a method's instance holds."""
    if getattr(_searching, "now", False):
        return bound
    for value in bound:
        try:
            data = _dumped(value)
        except Exception:
            continue  # it is not written, and the pickle says so
        kind = type(value)
        surveys = [
            Survey(x, frozenset())
            for x in (getattr(one, "_plain", one) for one in vars(kind).values())
            if type(x) is FunctionType
        ]
        texts = frozenset[str]().union(*map(secrets.code_texts, surveys))
        sentence = secrets.sentence_for(f"the {kind.__name__}", value, data, texts)
        if sentence:
            _tell(sentence, options)
    return bound


def _search(plain: FunctionType, options: Options) -> None:
    """Refuses, or warns of, values of environment variables that the function or the functions of
    its options hold. Raises SerializationError for what cannot be sent.
    """
    survey = Survey(plain, frozenset())
    of_options = {
        **{name: getattr(options, name) for name in ("setup", "on_stdout", "on_stderr")},
        **{f"the tool {tool.name}": tool for tool in options.tools},
    }
    data = _bytes_of((plain, of_options), plain, survey)
    if not secrets.values_in(data):
        return
    functions = [getattr(value, "fn", value) for value in of_options.values()]
    surveys = [survey, *(Survey(x, frozenset()) for x in functions if type(x) is FunctionType)]
    texts = frozenset().union(*map(secrets.code_texts, surveys))
    by_name = tuple(f"{name}." for name in survey.modules)
    values = {name: x for name, x in survey.values.items() if not name.startswith(by_name)}
    sentences = [
        secrets.sentence_for(name, value, _bytes_of(value, plain, survey), texts)
        for name, value in {**values, **of_options}.items()
    ]
    if not any(sentences):
        sentences = [secrets.sentence_for(plain.__name__, plain, data, texts)]
    for sentence in filter(None, sentences):
        _tell(sentence, options)


def _bytes_of(value: Any, plain: FunctionType, survey: Survey) -> bytes:
    try:
        return _dumped(value)
    except Exception:
        function_bytes(plain, survey)  # raises an error that names what it is, if it is of these
        raise


def _dumped(value: Any) -> bytes:
    _searching.now = True
    try:
        return bytes(cloudpickle.dumps(value))
    finally:
        _searching.now = False


def _tell(sentence: str, options: Options) -> None:
    if options.refuse_secrets:
        raise SerializationError(
            f"a pickle would hold a secret, which the policy refuses: {sentence}",
            hint="leave it out, pass it as an argument, or use a policy with refuse_secrets=False",
            path=sentence.partition(" ")[0],
            type_name="str",
        )
    text = f"{sentence}, and is written into a pickle"
    warnings.warn(text, UserWarning, stacklevel=callers_level())


def named_by(hint: object, space: dict[str, Any]) -> dict[str, Any]:
    """What an annotation names of a function's globals. Its code does not, so that no pickler
    would take it along.
    """
    return {name: space[name] for name in re.findall(r"\w+", str(hint)) if name in space}
