# SPDX-License-Identifier: Apache-2.0
"""What the caller's annotations say of a result: which classes it may hold, and whether it is what
was promised.

`named_types` computes the closed set in which the decoder looks names up. `check` enforces a
return annotation. Both read annotations leniently: what cannot be resolved or judged is taken for
`Any`. Nothing here is imported but typing.
"""

from __future__ import annotations

import collections
import collections.abc
import itertools
import sys
import types
import typing
import weakref
from typing import Any, Callable, Iterable, NamedTuple

_ARGUMENT_ITEMS = 10_000  # values looked at among the arguments, and annotations visited
_MOST_KEPT = 1024  # classes and annotations of which something is remembered
_CONTAINERS = (list, tuple, set, frozenset, dict)
_UNION = {typing.Union, getattr(types, "UnionType", typing.Union)}
_DICTS = {dict, collections.OrderedDict, collections.defaultdict, collections.Counter}
_DICTS |= {collections.abc.Mapping, collections.abc.MutableMapping}


class AnnotationMismatch(TypeError):
    """A value is not what its annotation says: `path` (like `result["rows"][2]`), `expected`,
    `got` (in words) and the name of its type; `named`: whether the annotation at that place names a
    class that travels by name.
    """

    def __init__(
        self, path: str, expected: str, got: str, type_name: str, named: bool = False
    ) -> None:
        super().__init__(f"{path} is {got}, annotated {expected}")
        self.path = path
        self.expected = expected
        self.got = got
        self.type_name = type_name
        self.named = named


def return_annotation(
    function: Callable[..., Any], local_names: dict[str, Any] | None = None
) -> Any:
    """The resolved return annotation, or Any where there is none or it cannot be resolved.
    `local_names`: what was in scope where the function was defined, if that was inside another one.
    """
    raw = getattr(function, "__annotations__", {}).get("return", Any)
    names = {**getattr(function, "__globals__", {}), **(local_names or {}), **_free_names(function)}
    return _resolved(raw, names)


def _resolved(hint: Any, names: dict[str, Any]) -> Any:
    holder = types.SimpleNamespace(__annotations__={"hint": hint})
    try:
        return typing.get_type_hints(holder, globalns=names, include_extras=True)["hint"]
    except Exception:
        return Any if isinstance(hint, str) else hint


def _free_names(function: Callable[..., Any]) -> dict[str, Any]:
    """What the function closes over: its annotation may name local classes."""
    found = {}
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    for name, cell in zip(code.co_freevars if code else (), cells or ()):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            pass  # not yet assigned
    return found


_hints: dict[type, dict[str, Any]] = {}


def field_hints(kind: type, anew: bool = False) -> dict[str, Any]:
    """The resolved annotations of a class's fields; Any for what cannot be resolved. `anew`: what
    they name may have been defined since they were resolved.
    """
    fields = getattr(kind, "model_fields", None)
    if type(fields) is dict:
        return {
            name: getattr(field, "annotation", Any) for name, field in fields.items()
        }  # pydantic resolved them
    known = None if anew else _hints.get(kind)
    if known is None:
        known = _resolved_fields(kind)
        if len(_hints) >= _MOST_KEPT:
            _hints.clear()
        _hints[kind] = known
    return known


def _resolved_fields(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:
        merged: dict[str, Any] = {}
        for base in reversed(kind.__mro__):
            names = {**vars(sys.modules.get(base.__module__, typing)), kind.__name__: kind}
            for name, hint in base.__dict__.get("__annotations__", {}).items():
                merged[name] = _resolved(hint, names)
        return merged


class Validation(NamedTuple):
    """What pydantic does to the fields of a class. `acting`: the first field whose validation acts
    on the process it runs in, "" where there is none; `refusal`: why it is not validated, or "".
    `branches`: among how many choices a container may have to be tried at every level of nesting,
    where the types name themselves; 1 where they do not. `into_records`: pydantic looks into models
    that are built already. `extra`: what fields are annotated with that the class does not have.
    `paths`: the fields in whose annotation a `Path` is named.
    """

    acting: str = ""
    refusal: str = ""
    branches: int = 1
    into_records: bool = False
    extra: Any = Any
    paths: frozenset[str] = frozenset()


_ACTS = {
    "import_string": "imports the module that it names",
    "PathType.validate_file": "looks for a file of that name",
    "PathType.validate_directory": "looks for a directory of that name",
    "PathType.validate_new": "looks for a file of that name",
    "PathType.validate_socket": "looks for a socket of that name",
}
_NOT_WALKED = {"serialization", "metadata", "default", "cls", "config", "ref"}
_validations: weakref.WeakKeyDictionary[type, Validation] = weakref.WeakKeyDictionary()


def validation(kind: type) -> Validation:
    """For a pydantic model or dataclass; empty for another class."""
    known = _validations.get(kind)
    if known is not None:
        return known
    if not hasattr(kind, "__pydantic_core_schema__"):
        if hasattr(kind, "__pydantic_model__"):
            return Validation(
                refusal=f"{kind.__qualname__} is a dataclass of pydantic 1, whose validation may "
                "import or look for what a cell names: make it one of pydantic 2 or of dataclasses"
            )
        return Validation()
    if getattr(kind, "__pydantic_complete__", True) is False:
        pydantic = sys.modules["pydantic"]
        if issubclass(kind, pydantic.BaseModel):
            kind.model_rebuild(raise_errors=False)  # type: ignore[attr-defined]
        else:
            pydantic.dataclasses.rebuild_dataclass(kind, raise_errors=False)
    if getattr(kind, "__pydantic_complete__", True) is False:
        return Validation(refusal=f"{kind.__qualname__} names types that are not defined yet")
    return _validations.setdefault(kind, _of_schema(kind))


def _of_schema(kind: type) -> Validation:
    acting = act = ""
    recursive = into_records = False
    unions: list[dict[Any, Any]] = []
    by_name: dict[Any, Any] = {}  # the schemas that others refer to
    visited: set[int] = set()
    stack: list[tuple[Any, str]] = [(kind.__pydantic_core_schema__, "")]  # type: ignore[attr-defined]
    while stack:
        node, path = stack.pop()
        if isinstance(node, (list, tuple)):
            stack.extend((item, path) for item in node)
        elif isinstance(node, dict):
            if id(node) in visited:
                continue
            visited.add(id(node))
            recursive = recursive or node.get("type") == "definition-ref"
            if node.get("type") == "union":
                unions.append(node)
            if isinstance(node.get("ref"), str):
                by_name[node["ref"]] = node
            config = node.get("config")
            if isinstance(config, dict):
                revalidates = config.get("revalidate_instances", "never") != "never"
                into_records = into_records or revalidates or bool(config.get("from_attributes"))
            for key, item in node.items():
                if key == "fields" and isinstance(item, dict):
                    stack.extend(
                        (field, f"{path}.{name}" if path else str(name))
                        for name, field in item.items()
                    )
                elif key == "fields" and isinstance(item, list):  # of a dataclass
                    for field in item:
                        name = field.get("name", "") if isinstance(field, dict) else ""
                        stack.append((field, f"{path}.{name}" if path else str(name)))
                elif key not in _NOT_WALKED:
                    stack.append((item, path))
        elif callable(node):
            node = getattr(node, "func", node)  # of a partial
            module = getattr(node, "__module__", None) or ""
            name = getattr(node, "__qualname__", "")
            if module.split(".")[0] == "pydantic" and name in _ACTS:
                acting, act = path or "root", _ACTS[name]
    refusal = ""
    if acting:
        acting = f"{kind.__qualname__}.{acting}"
        refusal = (
            f"{acting} is of a type whose validation {act}, here, outside of the sandbox; what a "
            "cell returns may not make it do so"
        )
    branches = 1
    for union in unions if recursive else ():
        count = _branches(union, by_name)
        if count > branches and _meets_itself(union, by_name, into_records):
            branches = count
    extra = typing.get_args(_extra_hint(kind))
    extra_hint = extra[1] if len(extra) == 2 else Any
    hints = field_hints(kind)
    paths = frozenset(name for name, hint in hints.items() if _names_path(hint))
    return Validation(acting, refusal, branches, into_records, extra_hint, paths)


_SPARE_TRIES = 1024
_TRIES_OF_VALUE = 64
_LISTS = {"list", "tuple", "set", "frozenset", "generator", "call"}
_MAPS = {"dict", "typed-dict"}
_NO_CONTAINERS = {
    *("none", "bool", "int", "float", "decimal", "str", "bytes", "complex", "date", "time"),
    *("datetime", "timedelta", "literal", "enum", "uuid", "url", "multi-host-url"),
    *("is-instance", "is-subclass", "missing-sentinel"),
}


def _branches(union: dict[Any, Any], by_name: dict[Any, Any]) -> int:
    """How many choices of a union may be tried on one container."""
    lists = maps = 0
    for choice in union.get("choices", ()):
        choice = choice[0] if isinstance(choice, tuple) else choice
        for _ in range(len(by_name) + 1):  # a reference may name another one
            if choice.get("type") != "definition-ref":
                break
            choice = by_name.get(choice.get("schema_ref"), {})
        form = choice.get("type")
        lists += form not in _MAPS and form not in _NO_CONTAINERS
        maps += form not in _LISTS and form not in _NO_CONTAINERS
    return max(lists, maps, 1)


def _meets_itself(union: dict[Any, Any], by_name: dict[Any, Any], into_records: bool) -> bool:
    """Whether what a choice of the union holds may be of the union again. What belongs into a field
    of a model is a model that was built, into which pydantic does not look.
    """
    visited: set[int] = set()
    stack: list[Any] = list(union["choices"])
    while stack:
        node = stack.pop()
        if node is union:
            return True
        if isinstance(node, (list, tuple)):
            stack.extend(node)
        elif isinstance(node, dict) and id(node) not in visited:
            visited.add(id(node))
            if node.get("type") == "definition-ref":
                stack.append(by_name.get(node.get("schema_ref")))
            elif into_records or node.get("type") not in ("model", "dataclass"):
                stack.extend(item for key, item in node.items() if key not in _NOT_WALKED)
    return False


def _extra_hint(kind: type) -> Any:
    """How `__pydantic_extra__` is annotated."""
    for base in kind.__mro__:
        hint = vars(base).get("__annotations__", {}).get("__pydantic_extra__")
        if hint is not None:
            return _resolved(hint, vars(sys.modules.get(base.__module__, typing)))
    return Any


def is_tried_often(values: Iterable[Any], seen: Validation) -> bool:
    """Whether pydantic may look at what these hold far more often than once, as it tries several
    choices at every level of nesting.
    """
    looked = tries = 0
    stack = [(value, 1) for value in values]
    while stack:
        value, times = stack.pop()
        looked += 1
        tries += times
        if tries > _SPARE_TRIES + _TRIES_OF_VALUE * (looked + len(stack)):
            return True
        held: Iterable[Any] = ()
        if isinstance(value, dict):
            held = value.values()
        elif isinstance(value, (list, tuple, set, frozenset)):
            held = value
        elif seen.into_records and is_record(type(value)):
            held = (item for _, item in record_fields(value))
        stack.extend((item, times * seen.branches) for item in held)
    return False


def wire_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_named(kind: type) -> bool:
    """Whether a class travels by name: an enum, dataclass, NamedTuple or pydantic model."""
    enum, pydantic = sys.modules.get("enum"), sys.modules.get("pydantic")
    return (
        any("__dataclass_fields__" in vars(base) for base in kind.__mro__)
        or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
        or (enum is not None and issubclass(kind, enum.Enum))
        or (pydantic is not None and issubclass(kind, pydantic.BaseModel))
    )


def is_record(kind: type) -> bool:
    """Whether it is a class of named fields: a dataclass, NamedTuple or pydantic model."""
    enum = sys.modules.get("enum")
    return _is_named(kind) and not (enum is not None and issubclass(kind, enum.Enum))


def record_fields(value: Any) -> Iterable[tuple[str, Any]]:
    """Names and values of a record's fields."""
    if isinstance(value, tuple):
        return zip(getattr(value, "_fields", ()), value)
    fields = getattr(type(value), "model_fields", None)
    names = value.__dataclass_fields__ if fields is None else fields
    return ((name, getattr(value, name, None)) for name in names)


def named_types(annotation: Any, args: Iterable[Any] = ()) -> dict[str, type]:
    """The classes that a result may hold, by "module.qualname": those that the (resolved)
    annotation reaches, also through fields, and those of the arguments and of what the arguments
    hold.
    """
    found: dict[str, type] = {}
    _from_annotation(annotation, found)
    for kind in _classes_in(args):
        _from_annotation(kind, found)
    return found


def _from_annotation(annotation: Any, found: dict[str, type]) -> None:
    queue = [annotation]
    seen: set[int] = set()
    while queue and len(seen) < _ARGUMENT_ITEMS:
        hint = queue.pop()
        if id(hint) in seen:
            continue
        seen.add(id(hint))
        if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
            if _is_named(hint):
                found[wire_name(hint)] = hint
                queue.extend(field_hints(hint, anew=True).values())
            elif _is_typed_dict(hint):
                queue.extend(field_hints(hint, anew=True).values())
            pydantic_generic = getattr(hint, "__pydantic_generic_metadata__", None)
            if type(pydantic_generic) is dict:
                queue.extend(pydantic_generic.get("args", ()))
            continue
        if hasattr(hint, "__value__"):
            queue.append(hint.__value__)  # type X = …
        if hasattr(hint, "__supertype__"):
            queue.append(hint.__supertype__)
        if isinstance(hint, typing.TypeVar):
            queue.extend([hint.__bound__, *hint.__constraints__])
            continue
        if typing.get_origin(hint) is typing.Literal:
            queue.extend(type(value) for value in typing.get_args(hint))
            continue
        queue.append(typing.get_origin(hint))
        for argument in typing.get_args(hint):
            queue.extend(argument if isinstance(argument, list) else [argument])


def _classes_in(args: Iterable[Any]) -> list[type]:
    """The named classes among the arguments, looking into plain containers and named values, up to
    a bound.
    """
    queue = collections.deque(args)
    classes: dict[type, None] = {}
    seen: set[int] = set()
    looked = 0
    while queue and looked < _ARGUMENT_ITEMS:
        value = queue.popleft()
        looked += 1
        kind = type(value)
        if kind in (list, tuple, set, frozenset, dict):
            if id(value) not in seen:
                seen.add(id(value))
                room = _ARGUMENT_ITEMS - looked
                for i, item in enumerate(value):
                    if i >= room:
                        break
                    queue.append(item)
                    if kind is dict:
                        queue.append(value[item])
        elif isinstance(value, type):
            if _is_named(value):
                classes[value] = None
        elif kind not in (int, float, str, bytes, bool, type(None)) and _is_named(kind):
            classes[kind] = None
            if id(value) not in seen:
                seen.add(id(value))
                fields = (
                    value if isinstance(value, tuple) else getattr(value, "__dict__", {}).values()
                )
                queue.extend(fields)
    return list(classes)


def check(value: Any, annotation: Any, path: str = "result", raw_enums: bool = False) -> None:
    """Raises AnnotationMismatch where `value` is not of the (resolved) annotation. `raw_enums`: an
    enum's value may stand for its member.
    """
    fault = _Judge(raw_enums).fault(value, annotation)
    if fault is not None:
        raise fault.error_at(path)


class _Fault:
    """A value that is not what was promised: made for every choice of a union that does not fit, so
    put into words only for the one that is raised.
    """

    __slots__ = ("value", "expected", "got", "steps")

    def __init__(self, value: Any, expected: Any, got: str = "") -> None:
        self.value = value
        self.expected = expected
        self.got = got
        self.steps: list[tuple[str, Any, int]] = []  # how to come to it, the innermost first

    def error_at(self, path: str) -> AnnotationMismatch:
        path += "".join(_step(*step) for step in reversed(self.steps))
        name = type(self.value).__name__
        expected = _shown(self.expected)
        if self.got:
            return AnnotationMismatch(path, expected, self.got, name)
        article = "an" if name[0] in "aeiouAEIOU" else "a"
        got = "None" if self.value is None else f"{article} {name}"
        return AnnotationMismatch(path, expected, got, name, _names_any(self.expected))


def _step(kind: str, container: Any, place: int) -> str:
    if kind == "item":
        return f"[{place}]"
    if kind == "key":
        return ".keys()"
    key = next(itertools.islice(container, place, None))
    return f"[{_quoted(key)}]"


class _Judge:
    """Finds where one value is not what was promised, in time proportional to its size: nothing is
    put into words on the way, and no container is judged twice against one choice of a union.
    """

    def __init__(self, raw_enums: bool) -> None:
        self._raw_enums = raw_enums
        # What is known of the containers inside a container that a union is tried on.
        self._known: dict[tuple[int, int], tuple[Any, bool]] | None = None

    def fault(self, value: Any, annotation: Any) -> _Fault | None:
        if (
            annotation is Any
            or annotation is object
            or isinstance(annotation, (str, typing.ForwardRef))
        ):
            return None
        if annotation is None or annotation is type(None):
            return None if value is None else _Fault(value, annotation)
        origin = typing.get_origin(annotation)
        if origin is None:
            return self._plain(value, annotation, annotation)
        if origin in _UNION:
            return self._union(value, annotation)
        if origin is typing.Literal:
            return self._literal(value, annotation)
        if origin is typing.Annotated or not isinstance(origin, type):
            # Annotated, Final, ClassVar, Required, NotRequired, ReadOnly: what they wrap; a generic
            # `type X[T] = …`: no more.
            arguments = typing.get_args(annotation)
            if arguments and not hasattr(origin, "__value__"):
                return self.fault(value, arguments[0])
            return None
        return self._generic(value, origin, annotation)

    def _union(self, value: Any, annotation: Any) -> _Fault | None:
        outermost = self._known is None
        if self._known is None:
            self._known = {}
        place = (id(value), id(annotation))
        known = self._known.get(place)
        if known is None:
            fits = any(self.fault(value, choice) is None for choice in annotation.__args__)
            if isinstance(value, _CONTAINERS) and not outermost:
                # With the annotation, so that no other one gets its id.
                self._known[place] = (annotation, fits)
        else:
            fits = known[1]
        if outermost:
            self._known = None
        return None if fits else _Fault(value, annotation)

    def _literal(self, value: Any, annotation: Any) -> _Fault | None:
        for x in typing.get_args(annotation):
            if type(value) is type(x) and value == x:
                return None
            if self._raw_enums and _is_raw(value) and _is_enum(type(x)) and value == x.value:
                return None
        return _Fault(value, annotation)

    def _generic(self, value: Any, origin: type, annotation: Any) -> _Fault | None:
        arguments = typing.get_args(annotation)
        if origin is tuple:
            return self._tuple(value, annotation, arguments)
        fault = self._plain(value, origin, annotation)
        if fault is not None:
            return fault
        kind = type(value)
        if origin in _DICTS and kind is dict:
            key_hint = arguments[0] if arguments else Any
            of_counter = origin is collections.Counter
            value_hint = int if of_counter else arguments[-1] if arguments else Any
            return self._items(value, key_hint, "key", value) or self._items(
                value.values(), value_hint, "value", value
            )
        if kind in (list, tuple, set, frozenset) and len(arguments) == 1:
            return self._items(value, arguments[0], "item", value)
        return None  # fields of a generic class of the user's own were checked as it was built

    def _tuple(self, value: Any, annotation: Any, arguments: tuple[Any, ...]) -> _Fault | None:
        if not isinstance(value, tuple):
            return _Fault(value, annotation)
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return self._items(value, arguments[0], "item", value)
        if arguments == ((),):
            arguments = ()  # how tuple[()] is written before Python 3.11
        unpack = getattr(typing, "Unpack", None)
        if any(typing.get_origin(hint) is unpack for hint in arguments if hint is not None):
            return None
        if len(value) != len(arguments):
            return _Fault(value, annotation, f"a tuple of {len(value)} items")
        for i, (item, hint) in enumerate(zip(value, arguments)):
            fault = self.fault(item, hint)
            if fault is not None:
                fault.steps.append(("item", value, i))
                return fault
        return None

    def _items(self, values: Iterable[Any], hint: Any, step: str, container: Any) -> _Fault | None:
        if hint is Any or hint is object or isinstance(hint, typing.TypeVar):
            return None
        # At C speed: most containers hold few types, and most hints are plain classes.
        sure = _sure(hint)
        if sure and sure.issuperset(map(type, values)):
            return None
        for i, value in enumerate(values):
            if type(value) not in sure:
                fault = self.fault(value, hint)
                if fault is not None:
                    fault.steps.append((step, container, i))
                    return fault
        return None

    def _plain(self, value: Any, annotation: Any, shown: Any) -> _Fault | None:
        """Against a class, or something that is not one: a TypeVar, a NewType, an alias."""
        if isinstance(annotation, typing.TypeVar):
            bound = annotation.__bound__
            return None if bound is None else self.fault(value, bound)
        if not isinstance(annotation, type):
            for wrapped in ("__supertype__", "__value__"):
                if hasattr(annotation, wrapped):
                    return self.fault(value, getattr(annotation, wrapped))
            if annotation is getattr(typing, "LiteralString", str):
                annotation = str
            elif annotation in (getattr(typing, "NoReturn", None), getattr(typing, "Never", None)):
                return _Fault(value, shown)
            else:
                return None
        if _is_typed_dict(annotation):
            return self._typed_dict(value, annotation)
        if _is_instance(value, annotation):
            return None
        if self._raw_enums and _is_raw(value) and _is_enum(annotation):
            return None
        return _Fault(value, shown)

    def _typed_dict(self, value: Any, annotation: Any) -> _Fault | None:
        if type(value) is not dict:
            return _Fault(value, annotation)
        hints = field_hints(annotation)
        for key in annotation.__required_keys__:
            if key not in value:
                return _Fault(value, annotation, f"a dict without {key!r}")
        for i, (key, item) in enumerate(value.items()):
            if key in hints:
                fault = self.fault(item, hints[key])
                if fault is not None:
                    fault.steps.append(("value", value, i))
                    return fault
            elif getattr(annotation, "__pydantic_config__", {}).get("extra") != "allow":
                return _Fault(value, annotation, f"a dict with {_quoted(key)}")
        return None


def _sure(hint: Any) -> frozenset[type]:
    """Classes whose direct instances are of the annotation, whatever they hold."""
    while typing.get_origin(hint) is typing.Annotated:
        hint = hint.__origin__
    if hint is None:
        return frozenset((type(None),))
    choices = hint.__args__ if typing.get_origin(hint) in _UNION else (hint,)
    return frozenset(
        choice
        for choice in choices
        if isinstance(choice, type)
        and typing.get_origin(choice) is None
        and not _is_typed_dict(choice)
    )


def _is_enum(kind: type) -> bool:
    enum = sys.modules.get("enum")
    return enum is not None and isinstance(kind, type) and issubclass(kind, enum.Enum)


def _is_raw(value: Any) -> bool:
    return type(value) in (str, int, float, bytes, bool)


def _quoted(key: Any) -> str:
    if type(key) is str and key[:80].isprintable() and '"' not in key[:80]:
        return f'"{key[:80]}"'
    is_short = type(key) in (str, bool) or (type(key) is int and key.bit_length() <= 64)
    return repr(key if type(key) is not str else key[:80])[:80] if is_short else "…"


def _is_instance(value: Any, kind: type) -> bool:
    try:
        if isinstance(value, kind):
            return True
    except TypeError:
        return True  # a protocol that cannot be asked
    # What PEP 484 lets stand for one another, also as numpy has it; and what only changed its class
    # on the way.
    numpy = sys.modules.get("numpy")
    if kind in (float, complex) and isinstance(value, (int, float)):
        return True
    if numpy is not None and isinstance(value, numpy.generic):
        wider = {
            int: numpy.integer,
            float: (numpy.integer, numpy.floating),
            complex: numpy.number,
            bool: numpy.bool_,
        }
        return isinstance(value, wider.get(kind, ()))
    if kind in _DICTS:
        return type(value) is dict
    if kind.__name__ == "Parameter" and kind.__module__.startswith("torch."):
        return type(value).__name__ == "Tensor" and type(value).__module__ == "torch"
    pathlib = sys.modules.get("pathlib")
    if pathlib is not None and isinstance(value, pathlib.PurePath):
        return issubclass(kind, pathlib.PurePath)
    if kind.__module__.split(".")[0] == "pydantic" and not _is_named(kind):
        return True  # a name for a constraint, as AwareDatetime: pydantic judges it
    if kind is getattr(typing, "Protocol", None) or getattr(kind, "_is_protocol", False):
        return True
    # A generator or iterator's items, which travel as a list only if the function made one, are no
    # match.
    return False


def _names_path(annotation: Any) -> bool:
    pathlib = sys.modules["pathlib"]  # pydantic imported it
    if annotation is pathlib.Path or annotation is pathlib.PosixPath:
        return True
    return any(map(_names_path, typing.get_args(annotation)))


def _is_typed_dict(kind: Any) -> bool:
    return hasattr(kind, "__total__") and hasattr(kind, "__required_keys__")


# Whether an annotation names a class that travels by name, by its id; it is kept with the answer.
_naming: dict[int, tuple[Any, bool]] = {}


def _names_any(annotation: Any) -> bool:
    known = _naming.get(id(annotation))
    if known is None:
        if len(_naming) >= _MOST_KEPT:
            _naming.clear()
        known = _naming[id(annotation)] = (annotation, bool(named_types(annotation)))
    return known[1]


def _shown(annotation: Any) -> str:
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        return annotation.__name__
    return repr(annotation).replace("typing.", "")[:200]
