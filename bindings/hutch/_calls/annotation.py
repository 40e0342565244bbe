# SPDX-License-Identifier: Apache-2.0
"""Results that do not match the function's return annotation.

Plain Python ignores an annotation. So plain data is returned unchanged, with one
`AnnotationWarning` for each function and place in the result. Where the annotation names a class of
the caller's (a dataclass, enum, NamedTuple or model), or with `check_result=True`, a
SerializationError is raised. Safe on any thread.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from hutch._callers import callers_level
from hutch._errors import AnnotationWarning, SerializationError
from hutch._results import checking

if TYPE_CHECKING:
    from hutch._calls.target import Target

_INDEX = re.compile(r"\[[0-9]+\]")
_MOST_PLACES = 100  # of a function, that are remembered
_warned: WeakKeyDictionary[object, set[str]] = WeakKeyDictionary()  # places, by function


def check(value: Any, target: Target, path: str = "result") -> None:
    """Warns of, or raises SerializationError for, a value that is not as annotated."""
    annotation = target.annotation
    if annotation is Any or type(value) is annotation or target.is_program:
        return
    try:
        checking.check(value, annotation, path)
    except checking.AnnotationMismatch as error:
        if target.options.check_result or error.named:
            raise _refusal(target, error) from None
        _warn(target, error)
    except RecursionError:
        raise SerializationError(
            f"{target.name} returned a value that is nested too deeply to be checked against its "
            "annotation",
            hint="return it flattened",
            path=path,
        ) from None


def _refusal(target: Target, error: checking.AnnotationMismatch) -> SerializationError:
    return SerializationError(
        f"{target.name} returned a value that does not match its annotation: {error}",
        hint="correct the return annotation or the returned value",
        path=error.path,
        type_name=error.type_name,
    )


def _warn(target: Target, error: checking.AnnotationMismatch) -> None:
    places = _warned.setdefault(target.function or target, set())
    place = _INDEX.sub("[]", error.path)
    if place in places or len(places) >= _MOST_PLACES:
        return
    places.add(place)
    import warnings

    text = (
        f"{target.name} returned a value that does not match its annotation: {error}; it is "
        "returned unchanged (check_result=True makes this an error)"
    )
    try:
        warnings.warn(text, AnnotationWarning, stacklevel=callers_level())
    except AnnotationWarning:  # the caller's filter makes it an error: each time
        places.discard(place)
        raise _refusal(target, error) from None
