# SPDX-License-Identifier: Apache-2.0
"""A function's bytes: made when first wanted, made anew when what it captured was replaced or is
mutable; and what of it would be missing inside.

Installed modules that go by name must be among the dependencies: otherwise the error comes here,
before anything is sent. Safe on any thread.
"""

from __future__ import annotations

import operator
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, FunctionType
from typing import Any

from hutch import _core
from hutch._callers import callers_level
from hutch._carry import pickling
from hutch._carry.pickling import Deferred, Tools, nested_code
from hutch._carry.survey import Survey, Watch
from hutch._errors import DependencyInstallError, SerializationError

_SOURCE_BUDGET = 24 << 10  # characters: a call's frame stays small
_ASSIGNED = re.compile(rb"\s*[A-Za-z_]\w*\s*=\s*")
# Names in code that may look at its own text.
_READERS = {"findsource", "getblock", "getsource", "getsourcelines", "inspect", "linecache"}


class Carried:
    """One thing that travels with a function. `size`: of its pickle, in bytes."""

    __module__ = "hutch"

    __slots__ = ("name", "type", "size", "warning")

    def __init__(self, name: str, type: str, size: int | None, warning: str = "") -> None:
        self.name = name
        self.type = type
        self.size = size
        self.warning = warning

    def __repr__(self) -> str:
        warning = f", warning={self.warning!r}" if self.warning else ""
        return f"Carried(name={self.name!r}, type={self.type!r}, size={self.size}{warning})"


class FunctionBytes:
    """The bytes of one function under one set of dependencies, made when first wanted."""

    def __init__(
        self,
        function: FunctionType,
        dependencies: tuple[str, ...] | None = (),
        sandbox_modules: frozenset[str] = frozenset(),
        refuse_secrets: bool = False,
        tools: Tools = pickling.NO_TOOLS,
    ) -> None:
        self._function = function
        self._tools = tools
        self._dependencies = dependencies
        self._sandbox_modules = sandbox_modules
        self._refuse_secrets = refuse_secrets
        self._lock = threading.Lock()
        self._survey: Survey | None = None
        self._data = b""
        self._blob: _core.Function | None = None
        self.sources: dict[str, str] = {}
        self.reads_sources = False  # whether the function may look at them while it runs

    def current(self) -> _core.Function:
        """What is to be sent now. Raises DependencyInstallError, SerializationError."""
        survey, blob = self._survey, self._blob
        if blob is not None and survey is not None and not survey.mutable and survey.is_current():
            return blob
        with self._lock:
            return self._make()

    def watch(self, code: _core.Function) -> Watch | None:
        """What `current` would look at; None: it would not be `code`, or is made for each call."""
        survey = self._survey
        if survey is None or survey.mutable or self._blob is not code:
            return None
        return survey.watch()

    def _make(self) -> _core.Function:
        survey, first = self._survey, self._survey is None
        if survey is None or not survey.is_current() or survey.mutable:
            survey = Survey(self._function, self._sandbox_modules, self._tools)
            check_installed(survey.by_name, self._dependencies)
            if self._survey is None or self._survey.code != survey.code:
                self.reads_sources = not _READERS.isdisjoint(survey.names)
                self.sources = sources(survey.code, survey.classes if self.reads_sources else None)
            self._survey = survey
        data = pickling.marshalled(self._function, self._sandbox_modules)
        if data is None or survey.imports:
            data = function_bytes(self._function, survey)
        if self._refuse_secrets:
            refuse_carried_secrets(self._function.__name__, self._function, survey, data)
        elif first:
            _warn_of_secrets(self._function, survey, data)
        if self._blob is None or data != self._data:
            self._data = data
            self._blob = _core.Function(data)
        return self._blob

    def carries(self) -> list[Carried]:
        """What travels, the function itself first."""
        from hutch._carry import secrets

        survey = Survey(self._function, self._sandbox_modules, self._tools)
        names, texts = frozenset(survey.names), secrets.code_texts(survey)
        total = Carried(
            self._function.__name__, "function", len(function_bytes(self._function, survey))
        )
        found = [total]
        modules = tuple(f"{name}." for name in survey.modules)
        for name, value in survey.values.items():
            if name.startswith(modules):
                continue  # part of the module
            size, warning = None, ""
            try:
                data = pickling.dumps(value, self._sandbox_modules, names, tools=self._tools)
                size, warning = len(data), secrets.sentence_for(name, value, data, texts)
            except Exception:
                pass  # the call says what cannot be sent
            found.append(Carried(name, type(value).__name__, size, warning))
        for name, module in survey.modules.items():
            size = len(pickling.dumps(module, self._sandbox_modules, names, tools=self._tools))
            found.append(Carried(name, "module", size))
        return found


def function_bytes(function: FunctionType, survey: Survey) -> bytes:
    entry: Any = function
    if survey.imports:  # own modules that the body imports: put where `import` finds them
        places = Deferred(getattr, sys, "modules")
        entry = Deferred(
            operator.getitem, [Deferred(dict.update, places, survey.imports), function], 1
        )
    try:
        names = frozenset(survey.names)
        return pickling.dumps(entry, survey.sandbox_modules, names, tools=survey.tools)
    except Exception as error:
        raise _unsendable(function, survey, error) from error


def _unsendable(function: FunctionType, survey: Survey, error: Exception) -> SerializationError:
    for name, value in survey.values.items():
        try:
            names = frozenset(survey.names)
            pickling.dumps(value, survey.sandbox_modules, names, tools=survey.tools)
        except Exception as one:
            return SerializationError(
                f"{function.__name__} uses {name} ({type(value).__name__}), which cannot be sent: "
                f"{' '.join(str(one).split())}",
                hint="make it inside the function, or pass plain data as an argument",
                path=name,
                type_name=type(value).__name__,
            )
    return SerializationError(
        f"{function.__name__} cannot be sent: {' '.join(str(error).split())}",
        path=function.__name__,
        type_name="function",
    )


def sources(codes: list[CodeType], classes: list[type] | None = None) -> dict[str, str]:
    """The text of what travels, for tracebacks inside: by file as it is named there, the lines that
    belong to the code; others are blank, so that numbers stay. With `classes`, theirs too, and in a
    form that can be parsed. What decorators are given does not travel, so nor does its text.
    """
    chosen: dict[str, dict[int, str]] = {}
    budget = _SOURCE_BUDGET
    for filename, first, lines in [*_class_blocks(classes or ()), *map(_block, codes)]:
        picked = chosen.setdefault(pickling.short_path(filename), {})
        for number, line in enumerate(lines, first):
            if line.isspace() and number - 1 not in picked:
                continue  # the block begins below
            if number not in picked:
                budget -= len(line)
                if budget < 0:
                    break
                picked[number] = line
    texts = {}
    for name, picked in chosen.items():
        if classes is not None:  # what is indented stands under something, where it is parsed
            for number in [i for i in picked if i - 1 not in picked and picked[i][0] in " \t"]:
                picked[number - 1] = "if True:\n"
        if picked:
            texts[name] = "".join(picked.get(i, "\n") for i in range(1, max(picked) + 1))
    return texts


def _block(code: CodeType) -> tuple[str, int, list[str]]:
    """The file, the first line's number, the lines."""
    import linecache

    first = code.co_firstlineno
    last = max(line or 0 for one in nested_code(code) for _, _, line in one.co_lines())
    lines = linecache.getlines(code.co_filename)[first - 1 : last]
    cut = _lambda_alone if code.co_name == "<lambda>" else _without_decorators
    return code.co_filename, first, cut(code, lines)


def _class_blocks(classes: Iterable[type]) -> Iterable[tuple[str, int, list[str]]]:
    import inspect

    for kind in classes:
        try:
            lines, first = inspect.getsourcelines(kind)
            yield inspect.getfile(kind), first, _without_decorators(kind, lines)
        except (OSError, TypeError, SyntaxError):
            pass  # made without a file, or its file has changed


def _without_decorators(owner: CodeType | type, lines: list[str]) -> list[str]:
    """With blank lines for decorators that are called: of a class, also of those in it."""
    import tokenize

    kept = list(lines)
    begin, is_decorator, is_called = 0, False, False
    try:
        for token in tokenize.generate_tokens(iter(lines).__next__):
            if token.type in (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT):
                continue
            line = token.start[0]
            if begin == 0:
                begin, is_decorator, is_called = line, token.string == "@", False
                if not is_decorator and isinstance(owner, CodeType):
                    return kept
            elif token.type == tokenize.NEWLINE:
                if is_decorator and is_called:
                    kept[begin - 1 : line] = ["\n"] * (line - begin + 1)
                begin = 0
            elif token.type != tokenize.NAME and token.string != ".":
                is_called = True
    except (tokenize.TokenError, SyntaxError):
        return ["\n"] * len(lines)  # another text than what was compiled
    return kept


def _lambda_alone(code: CodeType, lines: list[str]) -> list[str]:
    """It, where it stands, and the name that it is assigned to; nothing before Python 3.11, which
    does not know what belongs to it.
    """
    positions = getattr(CodeType, "co_positions", None)
    if positions is None:
        return []
    found = [
        place
        for one in nested_code(code)
        for place in positions(one)
        if None not in place and (place[0], place[2]) < (place[1], place[3])
    ]
    if not found:
        return []
    begin_line, begin = min((line, column) for line, _, column, _ in found)
    end_line, end = max((line, column) for _, line, _, column in found)
    first = code.co_firstlineno
    last = min(end_line, first + len(lines) - 1)
    texts = {number: lines[number - first].encode() for number in range(first, last + 1)}
    before = texts.get(begin_line, b"")[:begin]
    for number, text in ((begin_line, before), (first, texts.get(first, b""))):
        word = text.rfind(b"lambda")
        if word >= 0:
            begin_line, begin = number, word
            break
    if last == end_line:
        texts[last] = texts[last][:end]
    if begin_line in texts:
        text = texts[begin_line]
        texts[begin_line] = _before_lambda(text[:begin]) + text[begin:]
    kept = ["\n"] * len(lines)
    for number in range(begin_line, last + 1):
        kept[number - first] = texts[number].decode("utf-8", "replace")
    if kept and last == end_line:
        kept[last - first] += ")" * _open_parentheses(kept) + "\n"
    return kept


def _open_parentheses(lines: list[str]) -> int:
    """How many are around what a lambda computes, and end after it."""
    import tokenize

    depth = 0
    try:
        for token in tokenize.generate_tokens(iter(lines).__next__):
            if token.type == tokenize.OP:
                depth += {"(": 1, ")": -1}.get(token.string, 0)
    except (tokenize.TokenError, SyntaxError):
        pass  # it ends within them
    return max(depth, 0)


def _before_lambda(text: bytes) -> bytes:
    """As long, for what is parsed: the name that is assigned to, and nothing else of it."""
    if _ASSIGNED.fullmatch(text):
        return text
    bare = text.lstrip()
    if len(bare) < 2:
        return b" " * len(text)
    return text[: len(text) - len(bare)] + b"_" + b" " * (len(bare) - 2) + b"="


def check_installed(by_name: Mapping[str, str], dependencies: tuple[str, ...] | None) -> None:
    """Raises DependencyInstallError for an installed module that no dependency brings. None: what
    is inside is not known here.
    """
    wanted = {re.split(r"[^A-Za-z0-9._-]", item, maxsplit=1)[0] for item in dependencies or ()}
    for top, found_under in by_name.items():
        if top == "cloudpickle" or _canonical(top) in wanted:
            continue
        if top == "hutch":
            raise SerializationError(
                f"the function uses {found_under} of Hutch, which is not installed in the sandbox",
                hint="call sandboxed functions from outside, and pass data between them",
                path=found_under,
                type_name="module",
            )
        distribution = None if dependencies is None else _distribution(top)
        if distribution is None or _canonical(distribution) in wanted:
            continue
        closure, complete = _closure(wanted)
        if _canonical(distribution) in closure or not complete:
            continue
        raise DependencyInstallError(
            f"the function uses {found_under} of the installed package {distribution}, which is "
            "not among its dependencies",
            hint=f'add "{distribution}" to dependencies=',
            requirement=distribution,
        )


def _canonical(name: str) -> str:
    import re

    return re.sub(r"[-_.]+", "-", name).lower()


def _distribution(top: str) -> str | None:
    """What is to be installed for a module that is installed here."""
    from importlib import metadata

    from hutch._distributions import DISTRIBUTIONS

    for name in (DISTRIBUTIONS.get(top), top):
        if name is not None:
            try:
                return metadata.distribution(name).metadata["Name"]
            except metadata.PackageNotFoundError:
                pass
    found = metadata.packages_distributions().get(top)
    return found[0] if found else None


def _closure(names: set[str]) -> tuple[set[str], bool]:
    """The distributions that these bring, as far as they are installed here; whether all are."""
    from importlib import metadata

    from packaging.requirements import InvalidRequirement, Requirement

    found: set[str] = set()
    complete = True
    waiting = [_canonical(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        try:
            wants = metadata.distribution(name).requires or []
        except metadata.PackageNotFoundError:
            complete = False
            continue
        for text in wants:
            try:
                want = Requirement(text)
            except InvalidRequirement:
                continue
            if want.marker is None or want.marker.evaluate({"extra": ""}):
                waiting.append(_canonical(want.name))
    return found, complete


def _warn_of_secrets(function: FunctionType, survey: Survey, data: bytes) -> None:
    import warnings

    from hutch._carry import secrets

    for sentence in secrets.found(function, survey, data).values():
        text = f"{sentence}, and travels into the sandbox"
        warnings.warn(text, UserWarning, stacklevel=callers_level())


def refuse_carried_secrets(name: str, function: FunctionType, survey: Survey, data: bytes) -> None:
    """Raises SerializationError. `name`: of the function, for the message."""
    from hutch._carry import secrets

    for path, sentence in secrets.found(function, survey, data).items():
        raise SerializationError(
            f"{name} would carry a secret, which its policy refuses: {sentence}",
            hint="leave it out, pass it as an argument, or use a policy with refuse_secrets=False",
            path=path,
            type_name=type(survey.values.get(path, function)).__name__,
        )


def require_function(function: Callable[..., Any]) -> FunctionType:
    """The plain Python function to sandbox."""
    if isinstance(function, (staticmethod, classmethod)):
        raise TypeError(f"put @{type(function).__name__} above @sandbox, not below it")
    if not isinstance(function, FunctionType):
        kind = "a class" if isinstance(function, type) else f"a {type(function).__name__}"
        raise TypeError(f"@sandbox takes a Python function, not {kind}: {function!r:.80}")
    return function
