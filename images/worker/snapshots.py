# SPDX-License-Identifier: Apache-2.0
"""The names of a session as bytes, and back, in the user process of its cell: nowhere else are they
opened. And the exchange of its files for those of a snapshot.

The names go into one stream of pickles, one for each, with one memo for all: what two of them refer
to is there once. A function whose globals are the session's names has these again. After the
pickles come their buffers; a table of lengths stands before both. One thread.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import gc
import importlib
import io
import linecache
import os
import pickle
import signal
import sys
import types
import typing
from collections import deque
from collections.abc import Callable, Collection
from struct import Struct
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-not-found,import-untyped,unused-ignore]
import exchanging
import failures
import opening
import trying
from names import FEATURES, Names

OWN = "_hutch_snapshots"  # the name by which pickles find what stands here
SIZE = Struct("<Q")
MOST_LEFT_OUT = 10_000  # names that the client is given
MOST_SOURCES = 1000  # texts of earlier code, for tracebacks
ATTRIBUTES = ("__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__")
MORE_ATTRIBUTES = ("__type_params__", "__annotate__" if sys.version_info >= (3, 14) else "")
TOOLS = "hutch_tools"
OF_MEMBERS = ("_value_", "_name_", "__objclass__", "_sort_order_")  # what each Enum makes
SKELETON = cloudpickle.cloudpickle._make_skeleton_class
Cached = type(functools.lru_cache(len))
BY_NAME = (Cached, typing.NewType, typing.ParamSpec)  # what pickle writes as a name of its module
_names: Names | None = None  # into which what is loaded goes


class Pickler(cloudpickle.Pickler):  # type: ignore[misc,unused-ignore]
    """All names go through one, each into parts of its own."""

    def __init__(self, space: dict[str, Any]) -> None:
        super().__init__(self, 5, lambda buffer: self.buffers.append(buffer))
        self.space = space
        self.parts: list[bytes] = []
        self.buffers: list[Any] = []
        self.is_uncertain = False
        self.cells: dict[int, Any] = {}  # of functions, which set what is in them
        self.sources: dict[str, str] = {}
        tools = sys.modules.get(TOOLS)
        self.kv = getattr(tools, "kv", None)
        self.tools = tools

    def write(self, data: Any) -> int:
        self.parts.append(bytes(data))
        return len(data)

    def pickled(self, record: list[Any]) -> trying.Pickled:
        self.parts, self.buffers, self.is_uncertain = [], [], False
        try:
            self.dump(record)
        except BaseException:
            self.forget(record)
            raise
        return trying.Pickled(record, self.parts, self.buffers, self.is_uncertain)

    def forget(self, record: list[Any]) -> None:
        """What was memorized since `record`, which is not in the stream."""
        memo: dict[int, Any] = self.memo.copy()  # type: ignore[has-type]
        begun = memo.get(id(record))
        if begun is not None:
            self.memo = {key: one for key, one in memo.items() if one[0] < begun[0]}

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is types.FunctionType and obj.__globals__ is self.space:
            return self.of_function(obj)
        if kind is types.CellType and id(obj) in self.cells:
            return types.CellType, ()
        if kind is types.CodeType:
            make, arguments = self.dispatch_table[kind](obj)
            named = [obj.co_filename if one == "<dynamic-code>" else one for one in arguments]
            return make, tuple(named)
        if isinstance(obj, io.IOBase) and kind.__module__ == "_io" and not is_memory(obj):
            raise pickle.PicklingError("an open file")
        if kind is memoryview:
            raise pickle.PicklingError("a memoryview")
        if obj is self.kv and obj is not None:
            return getattr, (self.tools, "kv")
        if kind in BY_NAME:
            return self.of_named(obj)
        if isinstance(obj, BaseException) and needs_no_init(kind):
            reduced: Any = obj.__reduce__()
            return made_exception, (kind, *reduced[1]), *reduced[2:]
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and type(reduced) is tuple and len(reduced) == 6:
            reduced[2][0].setdefault("__qualname__", obj.__qualname__)
            slots = vars(obj).get("__slots__")
            if reduced[0] is SKELETON and isinstance(slots, (str, tuple, list, dict)):
                reduced[1][3]["__slots__"] = slots  # which are made with the class, or never
            self.is_uncertain = True  # it may have a metaclass, or a base with __init_subclass__
            if isinstance(obj, enum.EnumMeta):
                return of_enum(obj, reduced)
        elif trying.runs_code(kind, self.space.get("__name__")):
            self.is_uncertain = True
        return reduced

    def of_named(self, obj: Any) -> Any:
        """Pickle would write the name alone, which is found in a module, but not in a session."""
        kind = type(obj)
        if kind is Cached:
            function = obj.__wrapped__
            if getattr(function, "__globals__", None) is not self.space:
                return NotImplemented
            if not any(one is function for one in gc.get_referents(obj)):
                raise pickle.PicklingError("a cache of a function that it does not name")
            return made_cached, (function, *obj.cache_parameters().values()), obj.__dict__
        if getattr(obj, "__module__", None) != self.space.get("__name__"):
            return NotImplemented
        if kind is typing.NewType:
            return made_new_type, (obj.__name__, obj.__supertype__, obj.__module__)
        variances = obj.__bound__, obj.__covariant__, obj.__contravariant__
        return made_param_spec, (obj.__name__, *variances, obj.__module__)

    def of_function(self, function: Any) -> Any:
        """Its cells are made empty, so that those of two functions are the same, and that one may
        have the function itself in it.
        """
        closure = function.__closure__
        contents = []
        for cell in closure or ():
            self.cells[id(cell)] = cell
            try:
                contents.append((cell, cell.cell_contents))
            except ValueError:
                pass  # not assigned yet
        code = function.__code__
        lines = linecache.cache.get(code.co_filename, ())
        if code.co_filename.startswith("<") and len(lines) == 4:
            if len(self.sources) < MOST_SOURCES:
                self.sources[code.co_filename] = "".join(lines[2])
        attributes = {name: getattr(function, name) for name in ATTRIBUTES}
        for name in MORE_ATTRIBUTES:
            if name and hasattr(function, name):
                attributes[name] = getattr(function, name)
        if "__annotate__" not in attributes:
            attributes["__annotations__"] = function.__annotations__
        state = attributes, dict(function.__dict__), contents
        return made_function, (code, function.__name__, closure), state, None, None, finish_function


def is_memory(file: Any) -> bool:
    return isinstance(file, (io.BytesIO, io.StringIO))


def of_enum(kind: Any, reduced: Any) -> Any:
    """Its members are made of their values, and get what `__init__` or `__new__` gave them."""
    made_by = getattr(kind, "__new_member__", None)
    if kind._member_type_ is not object and isinstance(made_by, types.FunctionType):
        raise pickle.PicklingError("an Enum of a type of data with a __new__ of its own")
    for name, member in kind.__members__.items():  # other names of members, too
        reduced[1][3].setdefault(name, member.value)
        reduced[2][0].pop(name, None)
    more = {
        name: {key: value for key, value in vars(member).items() if key not in OF_MEMBERS}
        for name, member in kind.__members__.items()
    }
    if not any(more.values()):
        return reduced
    make, arguments, state, *rest = reduced
    return make, arguments, (state, more), *rest[:2], finish_enum


def finish_enum(kind: Any, state: Any) -> None:
    own, more = state
    cloudpickle.cloudpickle._class_setstate(kind, own)
    for name, attributes in more.items():
        vars(kind.__members__[name]).update(attributes)


def made_function(code: Any, name: str, closure: Any) -> Any:
    assert _names is not None
    return types.FunctionType(code, _names.space, name, None, closure)


def finish_function(function: Any, state: Any) -> None:
    attributes, more, contents = state
    for name, value in attributes.items():
        setattr(function, name, value)
    function.__dict__.update(more)
    for cell, value in contents:
        cell.cell_contents = value


def made_cached(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def made_new_type(name: str, supertype: Any, module: str) -> Any:
    made: Any = typing.NewType(name, supertype)  # type: ignore[misc]
    made.__module__ = module
    return made


def made_param_spec(name: str, bound: Any, covariant: bool, contra: bool, module: str) -> Any:
    made: Any = typing.ParamSpec(  # type: ignore[misc]
        name, bound=bound, covariant=covariant, contravariant=contra
    )
    made.__module__ = module
    return made


def made_exception(kind: Any, *arguments: Any) -> Any:
    made = kind.__new__(kind, *arguments)
    builtin = next(one for one in kind.__mro__ if one.__module__ == "builtins")
    builtin.__init__(made, *arguments)  # an OSError takes its fields from them there
    return made


def needs_no_init(kind: Any) -> bool:
    """Whether pickle would call an `__init__` of Python's with `args`, which it may not take."""
    methods = kind.__new__, kind.__reduce__, kind.__reduce_ex__
    return (
        isinstance(kind.__init__, types.FunctionType)
        and not any(isinstance(one, types.FunctionType) for one in methods)
        and kind not in copyreg.dispatch_table
    )


for _maker in (
    *(made_function, finish_function, finish_enum, made_cached),
    *(made_new_type, made_param_spec, made_exception),
):
    _maker.__module__ = OWN


class Taken:
    """The names as they are at this moment. `left_out`: those that cannot travel, each with why."""

    def __init__(self, names: Names, cwd: str) -> None:
        self.left_out: list[tuple[str, str]] = []
        pickler = Pickler(names.space)
        kept = self.pickled(pickler, names)
        more = {
            "flags": names.flags & FEATURES,
            "sources": pickler.sources,
            "directory": os.path.relpath(os.getcwd(), cwd),
        }
        # By themselves: they are wanted, too, where not all of the names can be opened.
        kept.append(pickler.pickled(["", pickle.dumps(more, 5)]))
        parts = [part for one in kept for part in one.parts]
        buffers = [buffer for one in kept for buffer in one.buffers]
        views = [buffer.raw() for buffer in buffers]
        sizes = [sum(map(len, parts)), *(view.nbytes for view in views)]
        head = b"".join(map(SIZE.pack, [len(sizes), *sizes]))
        self.parts = [memoryview(part) for part in (head, *parts)] + views
        self.size = len(head) + sum(sizes)
        self.at = (0, 0, 0)  # which part, where in it, and where in all

    def pickled(self, pickler: Pickler, names: Names) -> list[trying.Pickled]:
        """Those that can be loaded, too. Without one that cannot, the rest is pickled once more: it
        may refer to what came with that.
        """
        space, kept, certain = names.space, list[trying.Pickled](), 0
        left = names.listed()
        while True:
            for name in left:
                if name not in space:
                    continue  # what was pickled before has deleted it
                try:
                    kept.append(pickler.pickled([name, space[name]]))
                except Exception as error:
                    self.left_out.append((name, trying.reason_of(error)))
            bad = trying.why_not(kept, certain, pickler, space, lambda: begin_load(names))
            if not bad:
                return kept
            certain = min(bad)
            self.left_out += [(kept[place].record[0], why) for place, why in bad.items()]
            places = range(certain, len(kept))
            left = [kept[place].record[0] for place in places if place not in bad]
            pickler.forget(kept[certain].record)
            del kept[certain:]

    def read(self, offset: int, most: int) -> bytearray:
        """In order: `offset` is where the last one ended."""
        part, within, at = self.at
        if offset != at:
            raise ValueError("a snapshot is read in its order")
        found = bytearray()
        while part < len(self.parts) and len(found) < most:
            piece = self.parts[part][within : within + most - len(found)]
            found += piece
            within += piece.nbytes
            if within >= self.parts[part].nbytes:
                part, within = part + 1, 0
        self.at = part, within, at + len(found)
        return found


def begin_load(names: Names) -> None:
    global _names
    # A class that is here already is not the one that it was.
    cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.clear()
    _names = names


class Given:
    """What a Taken has given, as it comes back in pieces: the pickles, and their buffers, each in
    memory of its own. `size`: of all.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.is_damaged = False
        self.contents: list[bytearray] = []
        self.count = bytearray(SIZE.size)
        self.table: bytearray | None = None
        self.rooms = deque([memoryview(self.count)])

    def add(self, content: Any) -> None:
        """What is damaged is an error of load(), and takes no room."""
        try:
            if not self.is_damaged:
                self.take(content)
        except (ValueError, MemoryError):
            self.is_damaged, self.contents = True, []
            self.rooms.clear()

    def take(self, content: Any) -> None:
        data = memoryview(content).cast("B")
        while data:
            if not self.rooms:
                raise ValueError("the names are longer than they say")
            room = self.rooms[0]
            length = min(len(room), len(data))
            room[:length] = data[:length]
            data = data[length:]
            self.rooms[0] = room[length:]
            while self.rooms and not self.rooms[0]:
                self.rooms.popleft()
                self.filled()

    def filled(self) -> None:
        """Makes room for what comes next."""
        if self.contents:
            return
        count = SIZE.unpack(self.count)[0]
        if not 0 < count <= self.size // SIZE.size:
            raise ValueError("the names are damaged")
        if self.table is None:
            self.table = bytearray(SIZE.size * count)
            self.rooms.append(memoryview(self.table))
            return
        sizes = [size for (size,) in SIZE.iter_unpack(self.table)]
        if len(self.count) + len(self.table) + sum(sizes) != self.size:
            raise ValueError("the names are damaged")
        self.contents = [bytearray(size) for size in sizes]
        self.rooms.extend(map(memoryview, self.contents))

    def load(self, names: Names, dispensable: Collection[str]) -> Opened:
        """The names of the session are as they were then."""
        global _names
        if self.rooms or not self.contents:
            raise pickle.PicklingError("the names are damaged or cut off")
        before = {name: names.space.pop(name) for name in names.listed()}
        begin_load(names)
        try:
            return self.opened(names.space, dispensable)
        finally:
            _names = None
            for name in names.listed():
                del names.space[name]
            names.space.update(before)

    def opened(self, space: dict[str, Any], dispensable: Collection[str]) -> Opened:
        """Each name is there for what is opened after it."""
        stream, *buffers = self.contents
        made = Opened({}, {}, [], [])
        for part in opening.parts_of(stream, buffers, dispensable):
            if not part.name:
                made.more.update(more_of(part.value))
            elif part.why_not:
                made.left_out.append((part.name, part.why_not))
            else:
                made.found[part.name] = space[part.name] = part.value
                made.receipts.append(part.receipt())
        return made


def more_of(value: Any) -> dict[str, Any]:
    """What is known beside the names. Raises PicklingError for what cannot be."""
    more = pickle.loads(value) if type(value) is bytes else value
    try:
        flags, sources, directory = more["flags"], dict(more["sources"]), more["directory"]
        texts = [*sources, *sources.values(), directory]
        if type(flags) is int and all(type(text) is str for text in texts):
            return {"flags": flags & FEATURES, "sources": sources, "directory": directory}
    except (KeyError, TypeError, ValueError):
        pass
    raise pickle.PicklingError("the names are damaged")


class Opened(NamedTuple):
    """The names with their values, what else is known, of each name its size and SHA-256, and which
    were left out, with why.
    """

    found: dict[str, Any]
    more: dict[str, Any]
    receipts: list[tuple[str, int, str]]
    left_out: list[tuple[str, str]]


def put_back(names: Names, opened: Opened, cwd: str) -> None:
    more = opened.more
    for name in names.listed():
        del names.space[name]
    names.protected = {name: value for name, value in names.protected.items() if name in names.own}
    names.space.update(opened.found)
    names.flags = more["flags"]
    for filename, text in more["sources"].items():
        failures.remember_source(filename, text)
    try:
        os.chdir(os.path.join(cwd, more["directory"]))
    except (OSError, ValueError):
        os.chdir(cwd)


# ---- for the client


def without_modules_of(cwd: str) -> dict[str, Any]:
    """Takes those away that were imported from files there, which are other ones now."""
    below = os.path.join(cwd, "")
    found = {
        name: module
        for name, module in list(sys.modules.items())
        if str(getattr(module, "__file__", None) or "").startswith(below)
    }
    for name in found:
        del sys.modules[name]
    importlib.invalidate_caches()
    return found


class Snapshots:
    """Of one session, in whose directory its files are. `end_all()` ends what its names of before
    have started.
    """

    def __init__(self, cwd: str, end_all: Callable[[], None]) -> None:
        self.cwd = cwd
        self.end_all = end_all
        self.taken: Taken | None = None
        self.given: Given | None = None

    def answer(self, names: Names, verb: str, args: Any) -> Any:
        """What the verb gives: `take` the size of the names and those that are left out."""
        if verb == "take":
            self.taken = Taken(names, self.cwd)
            return self.taken.size, self.taken.left_out[:MOST_LEFT_OUT]
        if verb == "part" and self.taken is not None:
            return self.taken.read(*args)
        if verb == "begin":
            self.given = Given(*args)
        elif verb == "give" and self.given is not None:
            self.given.add(*args)
        elif verb == "restore":
            return self.restore(names, *args)
        elif verb == "undo":
            exchanging.undo(self.cwd, *args)
        self.taken = None
        if verb in ("drop", "undo"):
            self.given = None
        return None

    def restore(self, names: Names, staged: str | None, dispensable: list[str]) -> tuple[Any, ...]:
        """All of it or nothing: ("ok", the size and SHA-256 of each name, those that were left out
        with why), ("missing", the module, text) or ("refused", text).
        """
        given, self.given = self.given, None
        away: dict[str, Any] = {}
        try:
            if staged is not None:
                exchanging.exchange(self.cwd, staged)
                away = without_modules_of(self.cwd)
            opened = None if given is None else given.load(names, frozenset(dispensable))
        except BaseException as error:
            if staged is not None:
                exchanging.undo(self.cwd, staged)
                sys.modules.update(away)
            if isinstance(error, ModuleNotFoundError) and error.name:
                return "missing", error.name, trying.reason_of(error)
            if isinstance(error, Exception):
                return "refused", trying.reason_of(error)
            raise
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # all of it, or nothing
        try:
            if opened is not None:
                self.end_all()
                put_back(names, opened, self.cwd)
            elif staged is not None:
                os.chdir(self.cwd)
            if staged is not None:
                exchanging.finish(self.cwd, staged)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return ("ok", opened.receipts, opened.left_out) if opened is not None else ("ok", [], [])
