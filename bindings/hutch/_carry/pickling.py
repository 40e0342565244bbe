# SPDX-License-Identifier: Apache-2.0
"""Pickling for a sandbox: what belongs to the caller's own project goes by value, the rest by name.

Pickle protocol 5, read only inside a cell. On top of cloudpickle: modules that are neither standard
library nor installed are carried by value (a module object with the names that are used of it);
host paths in code are shortened, so that no home directory travels; annotations of functions are
left out, since no code in the sandbox needs their classes; a test runner's rewriting of asserts
is undone; a sandboxed function becomes the plain one; `os.environ` becomes the sandbox's own;
caches of functools travel empty. Objects of the caller are asked by their own `__reduce__`, on the
host, as any pickling does: only pickle what you would pickle yourself.

Safe on any thread: while modules are registered with cloudpickle (a registry of the process, put
back afterwards) a lock is held.
"""

from __future__ import annotations

import functools
import gc
import importlib
import io
import marshal
import operator
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import cloudpickle  # type: ignore[import-untyped,unused-ignore]

PROTOCOL = 5
LruCache = type(functools.lru_cache(len))
Environment = type(os.environ)
_REWRITTEN = "@pytest_ar"  # a name that no compiler makes
_registry_lock = threading.RLock()
_portable: dict[int, tuple[CodeType, CodeType]] = {}
_shortened: dict[str, str] = {}
_PORTABLE_LIMIT = 10_000
MARSHALLED = b"\x81"
_CONSTANTS = {type(None), type(...), bool, int, float, complex, str, bytes}
_NEVER_PLAIN = 0x20 | 0x80 | 0x200  # generators and coroutines, by flags of their code


def top_level(module_name: str) -> str:
    return module_name.partition(".")[0]


def is_standard(module_name: str) -> bool:
    return top_level(module_name) in sys.stdlib_module_names


def is_installed(module_name: str) -> bool:
    """Whether the module comes from site-packages, or is Hutch's own."""
    top = top_level(module_name)
    if top in ("hutch", "cloudpickle"):
        return True
    module = sys.modules.get(module_name) or sys.modules.get(top)
    if module is None:
        return False
    return any("site-packages" in path or "dist-packages" in path for path in _places(module))


def is_own(module_name: str | None) -> bool:
    """Whether the module is of the caller's own project, and so travels by value."""
    if not module_name or is_standard(module_name):
        return module_name == "__main__"
    return module_name in sys.modules and not is_installed(module_name)


def _places(module: ModuleType) -> list[str]:
    file = getattr(module, "__file__", None)
    if isinstance(file, str):
        return [file]
    try:
        return [str(path) for path in getattr(module, "__path__", ())]
    except Exception:
        return []


def short_path(filename: str) -> str:
    """A file's name as it travels: from the working directory or `sys.path` on, or its end."""
    known = _shortened.get(filename)
    if known is not None:
        return known
    short = filename
    if os.path.isabs(filename):
        short = os.path.basename(filename)
        for root in _roots():
            if len(root) > 1 and filename.startswith(root):
                short = filename[len(root) :]
                break
    if len(_shortened) < _PORTABLE_LIMIT:
        _shortened[filename] = short
    return short


def _roots() -> Iterable[str]:
    """The working directory and `sys.path`; what is relative leads nowhere if that was removed."""
    for path in ("", *sys.path):
        try:
            yield os.path.abspath(path) + os.sep
        except FileNotFoundError:
            pass


def portable_code(code: CodeType) -> CodeType:
    """The code with no path of the host in it, and with asserts as they were written."""
    known = _portable.get(id(code))
    if known is not None and known[0] is code:
        return known[1]
    made = _shorten(_as_written(code))
    if len(_portable) >= _PORTABLE_LIMIT:
        _portable.clear()
    _portable[id(code)] = (code, made)
    return made


def _shorten(code: CodeType) -> CodeType:
    constants = tuple(_shorten(x) if isinstance(x, CodeType) else x for x in code.co_consts)
    return code.replace(co_filename=short_path(code.co_filename), co_consts=constants)


def nested_code(code: CodeType) -> Iterable[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested_code(constant)


def _as_written(code: CodeType) -> CodeType:
    """pytest rewrites asserts into calls of its own, which is not inside: compiled anew."""
    if not any(_REWRITTEN in one.co_names for one in nested_code(code)):
        return code
    try:
        with open(code.co_filename, "rb") as file:
            module = compile(file.read(), code.co_filename, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return code
    for found in nested_code(module):
        if (
            found.co_name == code.co_name
            and found.co_firstlineno == code.co_firstlineno
            and found.co_freevars == code.co_freevars
            and found.co_varnames[: found.co_argcount] == code.co_varnames[: code.co_argcount]
        ):
            return found
    return code


def portable_function(function: FunctionType) -> FunctionType:
    """A copy to be pickled in the function's place."""
    copied = FunctionType(
        portable_code(function.__code__),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    copied.__qualname__ = function.__qualname__
    copied.__module__ = function.__module__
    copied.__dict__.update(function.__dict__)
    copied.__doc__ = function.__doc__
    return copied


class Tools:
    """Functions of the caller's that stay outside: inside stands what asks for them, by name."""

    def __init__(self, named: Iterable[tuple[str, Any]] = ()) -> None:
        self._named = list(named)

    def name_of(self, value: Any) -> str | None:
        for name, function in self._named:
            if value is function or (type(value) is MethodType and value == function):
                return name
        return None


NO_TOOLS = Tools()


class Deferred:
    """Pickles as a call that is made when it is loaded."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._call = (function, args)

    def __reduce__(self) -> Any:
        return self._call


class _Late:
    """Pickles as what is to be done when all else is loaded."""

    def __init__(self, steps: list[Deferred]) -> None:
        self._steps = steps

    def __reduce__(self) -> Any:
        if not self._steps:
            return tuple, ()
        steps = list(self._steps)
        self._steps.clear()
        return tuple, ([*steps, _Late(self._steps)],)  # these may bring further ones


class Pickler(cloudpickle.Pickler):  # type: ignore[misc,unused-ignore]
    """`sandbox_modules`: the caller's own top-level modules that can be imported in the sandbox.
    `names`: what is used of modules that are carried; None: everything. `tools`: what is not sent.
    """

    def __init__(
        self,
        file: io.BytesIO,
        sandbox_modules: frozenset[str] = frozenset(),
        names: frozenset[str] | None = None,
        buffer_callback: Callable[[Any], Any] | None = None,
        tools: Tools = NO_TOOLS,
    ) -> None:
        super().__init__(file, PROTOCOL, buffer_callback)
        self._tools = tools
        self._sandbox_modules = sandbox_modules
        self._names = names
        self._own: dict[str, bool] = {}
        self._registered: list[ModuleType] = []
        self._late: list[Deferred] = []
        self._caches: set[int] = set()  # of functools.singledispatch: they travel empty

    def dump(self, obj: Any) -> None:
        if "pydantic" in sys.modules and type(obj) not in _CONSTANTS:
            obj = Deferred(operator.getitem, (obj, _Late(self._late)), 0)
        try:
            super().dump(obj)
        finally:
            if self._registered:
                for module in self._registered:
                    cloudpickle.unregister_pickle_by_value(module)
                self._registered.clear()
                _registry_lock.release()

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        tool = self._tools.name_of(obj)
        if tool is not None:
            module = Deferred(importlib.import_module, "hutch_tools")
            return operator.getitem, (Deferred(getattr, module, "__tools__"), tool)
        if kind is FunctionType:
            if self._is_own(obj.__module__) or not _is_reachable(obj):
                return self._function(obj)
        elif isinstance(obj, type):
            self._is_own(obj.__module__)
            return self._without_validators(obj, _with_qualname(obj, super().reducer_override(obj)))
        elif kind is ModuleType:
            if self._is_own(obj.__name__):
                return ModuleType, (obj.__name__,), self._module_state(obj)
        elif kind is LruCache:
            if self._is_own(obj.__module__) or not _is_reachable(obj):
                return _with_empty_cache(obj)
        elif kind is functools.cached_property:  # before Python 3.12 it holds a lock
            return kind, (obj.func,), {"attrname": obj.attrname}
        elif kind is MappingProxyType:  # with the next one: functools.singledispatch has both
            return kind, (gc.get_referents(obj)[0],)
        elif kind is weakref.WeakKeyDictionary:
            items = [] if id(obj) in self._caches else list(obj.items())
            return kind, (), None, None, iter(items)
        elif kind is Environment:  # the sandbox has its own
            return getattr, (os, "environb" if obj is getattr(os, "environb", None) else "environ")
        elif isinstance(obj, io.TextIOWrapper):
            # cloudpickle would send the content of a file that is open for reading.
            raise pickle.PicklingError("an open file cannot be sent: pass its content")
        elif kind is CodeType:
            return _with_filename(portable_code(obj), *self.dispatch_table[CodeType](obj))
        elif kind.__name__ == "ArrowStringArray" and kind.__module__.startswith("pandas."):
            return _strings(obj)
        elif kind.__name__ == "Tensor" and kind.__module__ == "torch" and _is_dense(obj):
            return _tensor(obj)
        else:
            plain = getattr(kind, "__hutch_plain__", None)
            if plain is not None:
                return operator.getitem, ((plain(obj),), 0)
            self._is_own(kind.__module__)
        return super().reducer_override(obj)

    def _without_validators(self, kind: type, reduced: Any) -> Any:
        """What pydantic made of a class is made again from the class's schema as it is loaded. The
        schemas of classes hold one another and the classes: only in the end all are whole.
        """
        if type(reduced) is tuple and len(reduced) == 6:
            for name in ("__pydantic_validator__", "__pydantic_serializer__"):
                made = reduced[2][0].get(name)
                if type(made).__module__.partition(".")[0] == "pydantic_core":
                    del reduced[2][0][name]
                    self._late.append(Deferred(setattr, kind, name, made))
        return reduced

    def _function(self, function: FunctionType) -> Any:
        if function.__qualname__.startswith("singledispatch.<locals>."):
            self._caches.update(
                id(cell.cell_contents)
                for cell in function.__closure__ or ()
                if type(cell.cell_contents) is weakref.WeakKeyDictionary
            )
        place = self.globals_ref.setdefault(id(function.__globals__), {})
        if not place:
            place.update(_place_of(function.__globals__))
        return self._dynamic_function_reduce(portable_function(function))

    def _is_own(self, name: Any) -> bool:
        if not isinstance(name, str):
            return False
        known = self._own.get(name)
        if known is None:
            known = top_level(name) not in self._sandbox_modules and is_own(name)
            self._own[name] = known
            if known and name != "__main__":
                self._register(sys.modules[name])
        return known

    def _register(self, module: ModuleType) -> None:
        if not self._registered:
            _registry_lock.acquire()
        try:
            if module.__name__ in cloudpickle.list_registry_pickle_by_value():
                return
            cloudpickle.register_pickle_by_value(module)
            self._registered.append(module)
        finally:
            if not self._registered:
                _registry_lock.release()

    def _module_state(self, module: ModuleType) -> dict[str, Any]:
        state = {"__package__": getattr(module, "__package__", None), "__doc__": None}
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            state["__file__"] = short_path(file)
        if hasattr(module, "__path__"):
            state["__path__"] = []
        for name, value in list(vars(module).items()):
            if name.startswith("__") and name.endswith("__"):
                continue
            if self._names is None or name in self._names:
                state[name] = value
        return state


def marshalled(
    function: FunctionType, sandbox_modules: frozenset[str] = frozenset()
) -> bytes | None:
    """A function that refers to nothing but builtins, as a cell loads it fastest.
    None: it is to be pickled.
    """
    code, space = function.__code__, function.__globals__
    own = is_own(function.__module__) and top_level(function.__module__) not in sandbox_modules
    if not own and _is_reachable(function):
        return None
    if (
        function.__closure__
        or function.__kwdefaults__
        or vars(function)
        or code.co_flags & _NEVER_PLAIN
        or function.__name__ != code.co_name
        or function.__qualname__ != getattr(code, "co_qualname", code.co_name)
        or function.__module__ != space.get("__name__")
        or not _is_constant(function.__defaults__)
        or any(map(space.__contains__, _names_of(code)))
    ):
        return None
    portable = portable_code(code)
    if not _is_constant(portable):
        return None
    # Version 2 writes the same bytes for the same function.
    return MARSHALLED + marshal.dumps((portable, _place_of(space), function.__defaults__), 2)


def _place_of(space: dict[str, Any]) -> dict[str, Any]:
    """What a function's globals say of where it stood."""
    place: dict[str, Any] = {}
    for key in ("__package__", "__name__"):
        if key in space:
            place[key] = space[key]
    file = space.get("__file__")
    if isinstance(file, str):
        place["__file__"] = short_path(file)
    return place


def _names_of(code: CodeType) -> Iterable[str]:
    """What may be globals, of the function and those in it: attributes are among them."""
    return (name for one in nested_code(code) for name in one.co_names)


def _is_constant(value: Any) -> bool:
    """Whether marshal keeps it as it is."""
    kind = type(value)
    if kind is CodeType:
        return all(map(_is_constant, value.co_consts))
    if kind is tuple or kind is frozenset:
        return all(map(_is_constant, value))
    return kind in _CONSTANTS


def _with_filename(code: CodeType, make: Any, arguments: tuple[Any, ...]) -> Any:
    """cloudpickle leaves the name of the file out from 3.1.3 on; tracebacks and inspect need it."""
    left_out = "<dynamic-code>"
    return make, tuple(code.co_filename if item == left_out else item for item in arguments)


def _with_qualname(kind: type, reduced: Any) -> Any:
    """A class that goes by value keeps the name by which its instances are known in results."""
    if type(reduced) is tuple and len(reduced) == 6 and kind.__qualname__ != kind.__name__:
        reduced[2][0]["__qualname__"] = kind.__qualname__
    return reduced


def _with_empty_cache(function: Any) -> Any:
    """What `functools.lru_cache` made of a function of the caller's own."""
    settings = function.cache_parameters()
    info = Deferred(getattr, functools, "_CacheInfo")  # which is not known by its own name
    state = {name: x for name, x in vars(function).items() if name != "cache_parameters"}
    arguments = (function.__wrapped__, settings["maxsize"], settings["typed"], info)
    return type(function), arguments, state


def _strings(array: Any) -> Any:
    """A column of strings, kept inside as pandas there keeps strings: with pyarrow or without."""
    import pandas

    is_default = array.dtype.na_value is not pandas.NA
    return pandas.array, (array.to_numpy(object), "str" if is_default else "string")


def _is_dense(tensor: Any) -> bool:
    """Whether a tensor is nothing but its values, in the memory of this process."""
    return (
        tensor.device.type == "cpu"
        and str(tensor.layout) == "torch.strided"
        and not (tensor.is_nested or tensor.is_quantized or tensor.requires_grad or vars(tensor))
    )


def _tensor(tensor: Any) -> Any:
    """By its own bytes: torch's way takes all of the memory that the tensor is a view of."""
    import ctypes

    torch, shape = sys.modules["torch"], tuple(tensor.shape)
    if not tensor.numel():
        return operator.methodcaller("empty", shape, dtype=tensor.dtype), (torch,)
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    size = tensor.numel() * tensor.element_size()
    held: Any = (ctypes.c_char * size).from_address(tensor.data_ptr())
    held.owner = tensor  # alive as long as the bytes are
    read = operator.methodcaller("frombuffer", pickle.PickleBuffer(held), dtype=tensor.dtype)
    return operator.methodcaller("reshape", shape), (Deferred(read, torch),)


def _is_reachable(function: Any) -> bool:
    """Whether the name of an installed function leads to it, so that it can go by name."""
    found: Any = sys.modules.get(function.__module__ or "")
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function


def dumps(
    obj: Any,
    sandbox_modules: frozenset[str] = frozenset(),
    names: frozenset[str] | None = None,
    buffer_callback: Callable[[Any], Any] | None = None,
    tools: Tools = NO_TOOLS,
) -> bytes:
    file = io.BytesIO()
    Pickler(file, sandbox_modules, names, buffer_callback, tools).dump(obj)
    return file.getvalue()
