# SPDX-License-Identifier: Apache-2.0
"""Names out of a stream of pickles: all of them, or all but those that its client can do without.

One stream has one memo: what a pickle refers to of those before it is there by its number. Where
one cannot be opened as a whole, what can be is there for those after it.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import types
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import trying

MISSING = object()  # stands for what could not be made
PLAIN = (list, dict, set, tuple, frozenset)  # take anything
ATOMS = (type(None), bool, int, float, complex, str, bytes)  # are made of nothing
Unpickler: Any = pickle._Unpickler  # that of Python, of which each step can be another one
OF_ALL: dict[int, Callable[[Any], None]] = Unpickler.dispatch
REDUCE, TUPLE2 = OF_ALL[pickle.REDUCE[0]], OF_ALL[pickle.TUPLE2[0]]
MAKE_PLAIN = {
    OF_ALL[code[0]]
    for code in (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.FROZENSET)
}
LEFT_OUT = "it refers to what is left out"


class Part(NamedTuple):
    """A name that was opened. `pickle`, `buffers`: what it was made of. `why_not`: not "" for one
    that was left out.
    """

    name: str
    value: Any
    pickle: memoryview
    buffers: list[bytearray]
    why_not: str = ""

    def receipt(self) -> tuple[str, int, str]:
        """The name, the number of bytes, and their SHA-256."""
        import hashlib

        digest = hashlib.sha256(self.pickle)
        for buffer in self.buffers:
            digest.update(buffer)
        return self.name, len(self.pickle) + sum(map(len, self.buffers)), digest.hexdigest()


class Taken:
    """An iterator of buffers that knows how many it has given."""

    def __init__(self, buffers: list[bytearray], count: int = 0) -> None:
        self.buffers = buffers
        self.count = count

    def __iter__(self) -> Iterator[bytearray]:
        return self

    def __next__(self) -> bytearray:
        if self.count == len(self.buffers):
            raise StopIteration
        self.count += 1
        return self.buffers[self.count - 1]


def parts_of(
    stream: bytearray, buffers: list[bytearray], dispensable: Collection[str]
) -> Iterator[Part]:
    """The last has an empty name. Each is opened once the next is asked for. Raises PicklingError,
    or ModuleNotFoundError, for one that is not dispensable.
    """
    file, view, taken = io.BytesIO(stream), memoryview(stream), Taken(buffers)
    unpickler: Any = pickle.Unpickler(file, buffers=taken)
    tolerant: Tolerant | None = None
    while True:
        begin, first, why = file.tell(), taken.count, ""
        try:
            name, value = record(unpickler.load())
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if not dispensable or tolerant is not None:
                raise said(name_at(stream, begin, unpickler.memo.copy()), error) from None
            # Once more, but for what fails in it, and all that follows.
            memo = unpickler.memo.copy()
            file.seek(begin)
            taken = Taken(buffers, first)
            unpickler = tolerant = Tolerant(
                file, taken, {place: memo[place] for place in range(memorized(stream, begin))}
            )
            continue
        if tolerant is not None and (tolerant.failed or tolerant.is_missing(value)):
            failed = tolerant.failed or pickle.PicklingError(LEFT_OUT)
            if name not in dispensable:
                raise said(name, failed)
            why = trying.reason_of(failed)
        yield Part(name, value, view[begin : file.tell()], buffers[first : taken.count], why)
        if not name:
            return


def record(loaded: Any) -> tuple[str, Any]:
    name, value = loaded
    if type(name) is not str:
        raise pickle.PicklingError("the names are damaged")
    return name, value


def said(name: str, error: BaseException) -> BaseException:
    if isinstance(error, ModuleNotFoundError):
        return error
    return pickle.PicklingError((f"{name}: " if name else "") + trying.reason_of(error))


def memorized(stream: bytearray, end: int) -> int:
    """How much the pickles before `end` memorize."""
    file, count = io.BytesIO(stream), 0
    while file.tell() < end:
        count += sum(code.name == "MEMOIZE" for code, _, _ in pickletools.genops(file))
    return count


def name_at(stream: bytearray, begin: int, memo: dict[int, Any]) -> str:
    """Of the pickle there: the first text in it."""
    try:
        for code, argument, _ in pickletools.genops(memoryview(stream)[begin:][:5000].tobytes()):
            one: Any = memo.get(argument or 0) if code.name.endswith("GET") else argument
            if type(one) is str:
                return one
    except Exception:
        pass  # it is cut off there
    return ""


class Tolerant(Unpickler):  # type: ignore[misc]
    """Makes all that can be made of a pickle. What has in it what could not be is missing as well.
    `failed`: the first error of this pickle.
    """

    dispatch = dict(OF_ALL)

    def __init__(self, file: Any, buffers: Any, memo: dict[int, Any]) -> None:
        super().__init__(file, buffers=buffers)
        self.memo = memo
        self.failed: BaseException | None = None
        self.missing = {id(MISSING): MISSING}
        # What each was made of, by its id, and itself: it may have changed that since.
        self.made_of: dict[int, list[Any]] = {}
        self.fresh: dict[int, Any] = {}  # what was made in this pickle
        self.last: Any = None  # the step before
        self.arguments: Any = ()  # of a call that is made for what it does to the first of them

    def load(self) -> Any:
        self.failed, self.arguments, self.fresh = None, (), {}
        before = len(self.missing)
        loaded = super().load()
        if len(self.missing) > before:
            self.spread()
        return loaded

    def is_missing(self, *values: Any) -> bool:
        return any(id(one) in self.missing for one in values)

    def spread(self) -> None:
        """To what is in a circle with it."""
        found = [MISSING]
        while found:
            found = [
                one
                for one in self.fresh.values()
                if not self.is_missing(one) and self.is_missing(*self.made_of.get(id(one), ()))
            ]
            self.missing.update((id(one), one) for one in found)

    def step(self, do: Callable[[Any], None], count: int, onto: bool) -> None:
        """Takes `count` parts off the stack, or all up to the mark, which go into what is below
        them, or else become something.
        """
        parts = self.stack[-count:] if count else self.stack
        below = self.stack if count else self.metastack[-1]
        height = len(below) - count
        target = below[height - 1] if onto else None
        is_missing = self.is_missing(*parts, target)
        takes_all = type(target) in PLAIN if onto else do in MAKE_PLAIN
        # The arguments of any other call are memorized before it.
        self.arguments = parts[1] if do is REDUCE and self.last is TUPLE2 else ()
        self.last = do
        has_failed = is_missing and not takes_all
        if not has_failed:
            try:
                do(self)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self.failed = self.failed or error
                has_failed = True
        if has_failed:
            if self.stack is not below:
                self.pop_mark()
            del self.stack[height:]
            if not onto:
                self.stack.append(MISSING)
        made = self.stack[-1]
        self.fresh[id(made)] = made
        if is_missing or has_failed:
            self.missing[id(made)] = made
        elif type(made) not in ATOMS:
            self.made_of.setdefault(id(made), [made]).extend(parts)

    def load_pop(self) -> None:
        """What a call gave, if that was made for what it does to its first argument."""
        if self.stack and self.arguments and type(self.arguments[0]) not in ATOMS:
            target = self.arguments[0]
            if self.is_missing(self.stack[-1], *self.arguments):
                self.missing[id(target)] = target
                self.fill(self.arguments[1])
            else:
                self.made_of.setdefault(id(target), [target]).extend(self.arguments)
        self.arguments = ()
        OF_ALL[pickle.POP[0]](self)

    def fill(self, state: Any) -> None:
        """The cells of a function, which others may share: what is in them where that is there."""
        if type(state) is not tuple or not state or type(state[-1]) is not list:
            return
        for pair in state[-1]:
            if type(pair) is tuple and len(pair) == 2 and type(pair[0]) is types.CellType:
                if self.is_missing(pair[1]):
                    self.missing[id(pair[0])] = pair[0]
                else:
                    pair[0].cell_contents = pair[1]

    def load_memoize(self) -> None:
        self.last = None
        OF_ALL[pickle.MEMOIZE[0]](self)

    dispatch[pickle.POP[0]] = load_pop
    dispatch[pickle.MEMOIZE[0]] = load_memoize


def tolerated(code: bytes, count: int, onto: bool) -> None:
    do = OF_ALL[code[0]]
    Tolerant.dispatch[code[0]] = lambda self: self.step(do, count, onto)


for _code, _count in (
    *((pickle.TUPLE1, 1), (pickle.TUPLE2, 2), (pickle.TUPLE3, 3), (pickle.TUPLE, 0)),
    *((pickle.FROZENSET, 0), (pickle.STACK_GLOBAL, 2), (pickle.REDUCE, 2)),
    *((pickle.NEWOBJ, 2), (pickle.NEWOBJ_EX, 3)),
):
    tolerated(_code, _count, onto=False)
for _code, _count in (
    *((pickle.APPEND, 1), (pickle.APPENDS, 0), (pickle.SETITEM, 2), (pickle.SETITEMS, 0)),
    *((pickle.ADDITEMS, 0), (pickle.BUILD, 1)),
):
    tolerated(_code, _count, onto=True)
