# SPDX-License-Identifier: Apache-2.0
"""What travels with a function: a walk over everything that goes by value.

From the function over globals, closure, defaults, helpers, classes and modules of the caller's own.
It notes where each thing was found, so that a later call sees by a few identity checks whether one
was replaced, whether something mutable is among them, and what goes by name. No shared state.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from hutch._carry import pickling
from hutch._carry.pickling import Tools, is_installed, is_own, is_standard, nested_code, top_level
from hutch._errors import SerializationError

_ATOMS = {type(None), bool, int, float, complex, str, bytes, range, type(Ellipsis)}
_FROZEN = {  # immutable, by their modules' names, so that nothing is imported for asking
    "datetime": ("date", "time", "datetime", "timedelta", "timezone"),
    "decimal": ("Decimal",),
    "fractions": ("Fraction",),
    "re": ("Pattern",),
    "uuid": ("UUID",),
    "pathlib": ("PosixPath", "PurePosixPath"),
    "zoneinfo": ("ZoneInfo",),
}
_VISITS = 20_000
MISSING = object()  # what an empty cell holds
# (mapping, key, value), (owner, name, value) and (cell, value) of what was found.
Watch = tuple[list[tuple[Any, Any, Any]], list[tuple[Any, str, Any]], list[tuple[Any, Any]]]


class Survey:
    """What goes with `function`. `sandbox_modules`: the caller's own top-level modules that the
    sandbox has. `tools`: what stays outside.
    """

    def __init__(
        self,
        function: FunctionType,
        sandbox_modules: frozenset[str],
        tools: Tools = pickling.NO_TOOLS,
    ) -> None:
        self.sandbox_modules = sandbox_modules
        self.tools = tools
        self.mutable = False
        self.values: dict[str, Any] = {}  # captured, by the name it was found under
        self.by_name: dict[str, str] = {}  # top level of a module that goes by name: found under
        self.names: set[str] = set()  # that code which goes by value uses
        self.imports: dict[str, ModuleType] = {}  # own modules that bodies import
        self.code: list[CodeType] = []
        self.classes: list[type] = []  # that go by value
        self._watched: list[tuple[Any, Any, Any]] = []  # (mapping, key, value)
        self._cells: list[tuple[Any, Any]] = []
        self._attributes: list[tuple[Any, str, Any]] = []
        self.modules: dict[str, ModuleType] = {}
        self._seen: dict[int, Any] = {}
        self._visit_function(function)
        self._visit_modules()

    def watch(self) -> Watch | None:
        """What `is_current` looks at. None where a mapping is not a plain dict."""
        if any(type(mapping) is not dict for mapping, _, _ in self._watched):
            return None
        return self._watched, self._attributes, self._cells

    def is_current(self) -> bool:
        """Whether everything is still where it was found. Mutable things are not looked into."""
        for mapping, key, value in self._watched:
            if mapping.get(key, MISSING) is not value:
                return False
        for owner, name, value in self._attributes:
            if getattr(owner, name, MISSING) is not value:
                return False
        return all(_content(cell) is value for cell, value in self._cells)

    def _visit_function(self, function: FunctionType) -> None:
        if self._is_seen(function):
            return
        code = pickling.portable_code(function.__code__)
        self.code.append(function.__code__)
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            self._attributes.append((function, name, getattr(function, name)))
        space = function.__globals__
        for one in nested_code(code):
            self.names.update(one.co_names)
            self._note_imports(one, space)
        for one in nested_code(code):
            for name in one.co_names:
                if name in space:
                    self._watched.append((space, name, space[name]))
                    self._visit(name, space[name])
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            value = _content(cell)
            self._cells.append((cell, value))
            if value is not MISSING:
                self._visit(name, value)
        for value in function.__defaults__ or ():
            self._visit(f"a default of {function.__name__}", value)
        for name, value in (function.__kwdefaults__ or {}).items():
            self._visit(f"the default of {name}", value)
        for name, value in function.__dict__.items():
            self._visit(f"{function.__name__}.{name}", value)

    def _note_imports(self, code: CodeType, space: Mapping[str, Any]) -> None:
        if not any(self._may_be_own(name, space) for name in code.co_names):
            return
        import dis

        level: Any = 0
        previous: Any = 0
        for step in dis.get_instructions(code):
            if step.opname == "IMPORT_NAME":
                self._note_import(str(step.argval), level, space)
            if step.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
                level, previous = previous, step.argval  # the level is the last but one
        self.names.update(part for name in self.imports for part in name.split("."))

    def _may_be_own(self, name: str, space: Mapping[str, Any]) -> bool:
        top = top_level(name) or space.get("__package__") or ""
        return bool(top) and not is_standard(top) and top not in self.sandbox_modules

    def _note_import(self, name: str, level: Any, space: Mapping[str, Any]) -> None:
        import importlib

        if isinstance(level, int) and level > 0:
            package = space.get("__package__") or ""
            parts = package.split(".")
            name = ".".join([*parts[: len(parts) - level + 1], *([name] if name else [])])
        if (
            not name
            or is_standard(name)
            or top_level(name) in self.sandbox_modules
            or is_installed(name)
        ):
            return
        if name not in sys.modules and not self._is_own_file(name):
            return
        try:
            importlib.import_module(name)
        except Exception:
            return  # the cell says so, if the line is reached
        parts = name.split(".")
        for i in range(len(parts)):
            module = sys.modules.get(".".join(parts[: i + 1]))
            if module is not None and is_own(module.__name__):
                self.imports[".".join(parts[: i + 1])] = module
                self.modules.setdefault(module.__name__, module)

    @staticmethod
    def _is_own_file(name: str) -> bool:
        import importlib.util

        try:
            spec = importlib.util.find_spec(top_level(name))
        except (ImportError, ValueError):
            return False
        place = (spec.origin or "") if spec is not None else ""
        return (
            place.endswith(".py") and "site-packages" not in place and "dist-packages" not in place
        )

    def _visit_modules(self) -> None:
        """To a fixpoint: what is used of one module may use more names of another."""
        done: set[tuple[str, str]] = set()
        while True:
            waiting = [
                (module, name)
                for module in list(self.modules.values())
                for name in sorted(self.names & vars(module).keys())
                if (module.__name__, name) not in done
            ]
            if not waiting:
                return
            for module, name in waiting:
                done.add((module.__name__, name))
                value = vars(module)[name]
                self._watched.append((vars(module), name, value))
                self._visit(f"{module.__name__}.{name}", value)

    def _visit(self, name: str, value: Any) -> None:
        kind = type(value)
        if kind in _ATOMS:
            self.values.setdefault(name, value)
        elif self.tools.name_of(value) is not None:
            pass
        elif kind is FunctionType:
            if self._goes_by_value(value.__module__) or not pickling._is_reachable(value):
                self.values.setdefault(name, value)
                self._visit_function(value)
        elif kind is pickling.LruCache:
            own = self._goes_by_value(value.__module__, name)
            if own or not pickling._is_reachable(value):
                self.values.setdefault(name, value)
                self._visit_function(value.__wrapped__)
        elif isinstance(value, type):
            if self._goes_by_value(value.__module__, name):
                self.values.setdefault(name, value)
                self._visit_class(value)
        elif kind is ModuleType:
            if self._goes_by_value(value.__name__, name):
                if not _is_source(value):
                    raise SerializationError(
                        f"{name} is the module {value.__name__}, which is not Python source "
                        "and cannot be sent by value",
                        hint="make a package of it and name that in dependencies=",
                        path=name,
                        type_name="module",
                    )
                self.modules.setdefault(value.__name__, value)
        elif kind is BuiltinFunctionType:
            self._goes_by_value(getattr(value, "__module__", None), name)
        elif kind is pickling.Environment:
            pass  # the sandbox has its own
        elif kind is MethodType:
            self._visit(name, value.__func__)
            self._visit(name, value.__self__)
        elif hasattr(kind, "__hutch_plain__"):
            self._visit(name, kind.__hutch_plain__(value))
        elif not self._is_seen(value):
            self.values.setdefault(name, value)
            self._visit_instance(name, value, kind)

    def _visit_instance(self, name: str, value: Any, kind: type) -> None:
        enum = sys.modules.get("enum")
        if kind is tuple or kind is frozenset:
            self._visit_all(name, value)
        elif kind in (list, set, dict):
            self.mutable = True
            self._visit_all(name, value)
            if kind is dict:
                self._visit_all(name, value.values())
        elif kind in (staticmethod, classmethod):
            self._visit(name, value.__func__)
        elif kind is functools.cached_property:
            self._visit(name, value.func)
        elif kind is property:
            self._visit_all(name, (value.fget, value.fset, value.fdel))
        else:
            frozen = kind.__name__ in _FROZEN.get(kind.__module__, ())
            if not frozen and not (enum is not None and isinstance(value, enum.Enum)):
                self.mutable = True
            if self._goes_by_value(kind.__module__, name):
                self._visit_class(kind)
            self._visit_all(name, list(getattr(value, "__dict__", {}).values()))

    def _visit_all(self, name: str, values: Iterable[Any]) -> None:
        for value in values:
            if len(self._seen) > _VISITS:
                return
            if type(value) not in _ATOMS:
                self._visit(name, value)

    def _visit_class(self, kind: type) -> None:
        if self._is_seen(kind):
            return
        self.classes.append(kind)
        enum = sys.modules.get("enum")
        is_enum = enum is not None and issubclass(kind, enum.Enum)
        for base in kind.__mro__[1:]:
            if self._goes_by_value(base.__module__, kind.__name__):
                self._visit_class(base)
        for name, value in list(vars(kind).items()):
            if name in ("__dict__", "__weakref__", "__module__", "__doc__", "_abc_impl"):
                continue
            self._watched.append((vars(kind), name, value))
            where = f"{kind.__name__}.{name}"
            if name == "__annotations__" and isinstance(value, dict):
                for hint in value.values():
                    if isinstance(hint, type):
                        self._visit(where, hint)
                continue
            was = self.mutable
            code = (FunctionType, staticmethod, classmethod, property)
            if not is_enum or isinstance(value, code):
                self._visit(where, value)
            if name.startswith("__"):
                self.mutable = was  # what decorators leave, such as a dataclass's fields
        for name in list(self.values):
            if name.startswith(f"{kind.__name__}."):
                del self.values[name]  # part of the class

    def _goes_by_value(self, module_name: Any, found_under: str = "") -> bool:
        """Else notes the module as one that is wanted inside, unless it is always there."""
        if not isinstance(module_name, str):
            return False
        top = top_level(module_name)
        if top in self.sandbox_modules or (is_standard(module_name) and module_name != "__main__"):
            return False
        if is_own(module_name):
            return True
        if module_name in sys.modules:
            self.by_name.setdefault(top, found_under or module_name)
        return False

    def _is_seen(self, value: Any) -> bool:
        if id(value) in self._seen:
            return True
        self._seen[id(value)] = value  # held, so that its id stays its own
        return False


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _is_source(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return not isinstance(file, str) or file.endswith((".py", ".pyc"))
