# SPDX-License-Identifier: Apache-2.0
"""Whether what travels with a function holds the value of an environment variable.

The bytes that travel are searched, so it does not matter how the function refers to a value: by a
global, an attribute of a class or an instance, any container, or a docstring. The texts of the code
itself (its constants and names) are not captured from the environment and do not count. Pure
reading; safe on any thread.
"""

from __future__ import annotations

import os
import pickletools
import re
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from hutch._carry import pickling
from hutch._carry.survey import Survey

# Variables whose values say nothing, or are no secret.
_HARMLESS = {"HOME", "LANG", "LOGNAME", "OLDPWD", "PATH", "PWD", "SHELL", "TERM", "USER", "_"}
_SHORTEST = 8  # characters of a value that is looked for
_SHORTEST_PART = 12  # of one that is looked for within longer texts


def found(function: FunctionType, survey: Survey, data: bytes) -> dict[str, str]:
    """What holds the value of a variable, as a sentence by its name. `data`: what travels."""
    suspects = values_in(data)
    if not suspects:
        return {}
    texts = code_texts(survey)
    sentences = {}
    for name, value in survey.values.items():
        try:
            carried = pickling.dumps(value, survey.sandbox_modules, frozenset(survey.names))
        except Exception:
            continue  # it is part of something that can be sent
        sentence = sentence_for(name, value, carried, texts)
        if sentence:
            sentences[name] = sentence
    if not sentences:
        name = function.__name__
        if data.startswith(pickling.MARSHALLED):
            data = pickling.dumps(function, survey.sandbox_modules, frozenset(survey.names))
        sentence = sentence_for(name, function, data, texts)
        if sentence:
            sentences[name] = sentence
    return sentences


def sentence_for(name: str, value: Any, data: bytes, code: frozenset[str]) -> str:
    """ "": nothing is there. `data`: the pickle of `value`; `code`: see code_texts()."""
    suspects = values_in(data)
    for text in _texts(data) if suspects else ():
        for variable, content in suspects.items():
            if text not in code and (text == content or _is_part(content, text)):
                verb = "is" if type(value) in (str, bytes) and text == content else "holds"
                return f"{name} {verb} the value of the environment variable {variable}"
    return ""


def code_texts(survey: Survey) -> frozenset[str]:
    """The texts that stand in the code itself: constants, names, and where it was defined."""
    texts = {*survey.names, *survey.modules, *survey.sandbox_modules}
    for kind in survey.classes:
        texts |= {kind.__name__, kind.__qualname__, kind.__module__}
    for code in survey.code:
        texts.update(_constants(pickling.portable_code(code)))
    return frozenset(texts)


def _constants(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (tuple, frozenset)):
        for item in value:
            yield from _constants(item)
    elif isinstance(value, CodeType):
        yield from (value.co_name, getattr(value, "co_qualname", ""), value.co_filename)
        for part in (value.co_consts, value.co_names, value.co_varnames, value.co_freevars):
            yield from _constants(part)


def values_in(data: bytes) -> dict[str, str]:
    """The variables whose values are somewhere in the bytes, also by chance."""
    return {
        variable: content
        for variable, content in os.environ.items()
        if len(content) >= _SHORTEST
        and variable not in _HARMLESS
        and content.encode("utf-8", "surrogatepass") in data
    }


def _texts(data: bytes) -> Iterable[str]:
    """The texts and bytes in a pickle."""
    for _, value, _ in pickletools.genops(data):
        if isinstance(value, str):
            yield value
        elif isinstance(value, (bytes, bytearray)):
            yield value.decode("utf-8", "replace")


def _is_part(content: str, text: str) -> bool:
    """Whether a text holds a value as a word of it, such as "Bearer " and a token."""
    if len(content) < _SHORTEST_PART or len(text) == len(content) or content not in text:
        return False
    if os.path.isabs(content) and os.path.exists(content):
        return False  # a directory that other paths begin with
    return re.search(rf"(?<!\w){re.escape(content)}(?!\w)", text) is not None
