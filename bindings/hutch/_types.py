"""What the caller's annotations say of a result: which classes it may hold, and whether it is what
was promised.

`named_types` computes the closed set in which the decoder looks names up. `check` enforces a
return annotation. Both read annotations leniently: what cannot be resolved or judged is taken for
`Any`. Nothing here is imported but typing.
"""

from __future__ import annotations

import collections
import collections.abc
import sys
import types
import typing
from typing import Any, Callable, Iterable

_ARGUMENT_ITEMS = 10_000  # values looked at among the arguments, and annotations visited
_UNION = {typing.Union, getattr(types, "UnionType", typing.Union)}
_DICTS = {dict, collections.OrderedDict, collections.defaultdict, collections.Counter}
_DICTS |= {collections.abc.Mapping, collections.abc.MutableMapping}


class AnnotationMismatch(TypeError):
    """A value is not what its annotation says: `path` (like `result["rows"][2]`), `expected`,
    `got` (in words) and the name of its type.
    """

    def __init__(self, path: str, expected: str, got: str, type_name: str) -> None:
        super().__init__(f"{path} is {got}, annotated {expected}")
        self.path = path
        self.expected = expected
        self.got = got
        self.type_name = type_name


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


def field_hints(kind: type) -> dict[str, Any]:
    """The resolved annotations of a class's fields; Any for what cannot be resolved."""
    fields = getattr(kind, "model_fields", None)
    if type(fields) is dict:
        return {
            name: getattr(field, "annotation", Any) for name, field in fields.items()
        }  # pydantic resolved them
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:
        merged: dict[str, Any] = {}
        for base in reversed(kind.__mro__):
            names = {**vars(sys.modules.get(base.__module__, typing)), kind.__name__: kind}
            for name, hint in base.__dict__.get("__annotations__", {}).items():
                merged[name] = _resolved(hint, names)
        return merged


def wire_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_named(kind: type) -> bool:
    """Whether a class travels by name: an enum, dataclass, NamedTuple or pydantic model."""
    enum, pydantic = sys.modules.get("enum"), sys.modules.get("pydantic")
    return (
        "__dataclass_fields__" in dir(kind)
        or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
        or (enum is not None and issubclass(kind, enum.Enum))
        or (pydantic is not None and issubclass(kind, pydantic.BaseModel))
    )


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
                queue.extend(field_hints(hint).values())
            elif _is_typed_dict(hint):
                queue.extend(field_hints(hint).values())
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


def check(value: Any, annotation: Any, path: str = "result") -> None:
    """Raises AnnotationMismatch where `value` is not of the (resolved) annotation."""
    if (
        annotation is Any
        or annotation is object
        or isinstance(annotation, (str, typing.ForwardRef))
    ):
        return
    if annotation is None or annotation is type(None):
        if value is not None:
            raise _mismatch(value, annotation, path)
        return
    origin = typing.get_origin(annotation)
    if origin is None:
        _check_plain(value, annotation, path)
    elif origin in _UNION:
        _check_union(value, annotation, path)
    elif origin is typing.Literal:
        if not any(type(value) is type(x) and value == x for x in typing.get_args(annotation)):
            raise _mismatch(value, annotation, path)
    elif origin is typing.Annotated or not isinstance(origin, type):
        # Annotated, Final, ClassVar, Required, NotRequired, ReadOnly: what they wrap; a generic
        # `type X[T] = …`: no more.
        arguments = typing.get_args(annotation)
        if arguments and not hasattr(origin, "__value__"):
            check(value, arguments[0], path)
    else:
        _check_generic(value, origin, annotation, path)


def _check_union(value: Any, annotation: Any, path: str) -> None:
    for choice in typing.get_args(annotation):
        try:
            check(value, choice, path)
        except AnnotationMismatch:
            continue
        return
    raise _mismatch(value, annotation, path)


def _check_generic(value: Any, origin: type, annotation: Any, path: str) -> None:
    arguments = typing.get_args(annotation)
    if origin is tuple:
        _check_tuple(value, annotation, arguments, path)
        return
    _check_plain(value, origin, path, annotation)
    kind = type(value)
    if origin in _DICTS and kind is dict:
        key_hint = arguments[0] if arguments else Any
        value_hint = int if origin is collections.Counter else arguments[-1] if arguments else Any
        _check_items(value, key_hint, path, lambda i, x: f"{path}.keys()")
        _check_items(value.values(), value_hint, path, lambda i, x: f"{path}[{_key(value, i)}]")
    elif kind in (list, tuple, set, frozenset) and len(arguments) == 1:
        _check_items(value, arguments[0], path, lambda i, x: f"{path}[{i}]")
    elif _is_named(kind) and issubclass(kind, tuple) is False:
        return  # a generic class of the user's own: its fields were checked as it was built


def _check_tuple(value: Any, annotation: Any, arguments: tuple[Any, ...], path: str) -> None:
    if not isinstance(value, tuple):
        raise _mismatch(value, annotation, path)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        _check_items(value, arguments[0], path, lambda i, x: f"{path}[{i}]")
        return
    if arguments == ((),):
        arguments = ()  # how tuple[()] is told before Python 3.11
    if any(
        typing.get_origin(hint) is getattr(typing, "Unpack", None)
        for hint in arguments
        if hint is not None
    ):
        return
    if len(value) != len(arguments):
        got = f"a tuple of {len(value)} items"
        raise AnnotationMismatch(path, _shown(annotation), got, "tuple")
    for i, (item, hint) in enumerate(zip(value, arguments)):
        check(item, hint, f"{path}[{i}]")


def _check_items(
    values: Iterable[Any], hint: Any, path: str, step: Callable[[int, Any], str]
) -> None:
    if hint is Any or hint is object or isinstance(hint, typing.TypeVar):
        return
    kinds = set(
        map(type, values)
    )  # at C speed; most containers hold one type, and most hints are plain classes
    if isinstance(hint, type) and typing.get_origin(hint) is None and kinds <= {hint}:
        if not _is_typed_dict(hint):
            return
    for i, value in enumerate(values):
        try:
            check(value, hint, "")
        except AnnotationMismatch as error:
            raise AnnotationMismatch(
                step(i, value) + error.path, error.expected, error.got, error.type_name
            ) from None


def _key(mapping: dict[Any, Any], place: int) -> str:
    return _quoted(list(mapping)[place])


def _quoted(key: Any) -> str:
    if type(key) is str and key.isprintable() and '"' not in key:
        return f'"{key[:80]}"'
    return repr(key)[:80] if type(key) in (str, int, bool) else "…"


def _check_plain(value: Any, annotation: Any, path: str, shown: Any = None) -> None:
    """Against a class, or something that is none: a TypeVar, a NewType, an alias."""
    shown = annotation if shown is None else shown
    if isinstance(annotation, typing.TypeVar):
        if annotation.__bound__ is not None:
            check(value, annotation.__bound__, path)
        return
    for wrapped in ("__supertype__", "__value__"):
        if not isinstance(annotation, type) and hasattr(annotation, wrapped):
            check(value, getattr(annotation, wrapped), path)
            return
    if annotation in (getattr(typing, "LiteralString", str),):
        annotation = str
    if annotation in (getattr(typing, "NoReturn", None), getattr(typing, "Never", None)):
        raise _mismatch(value, shown, path)
    if not isinstance(annotation, type):
        return
    if _is_typed_dict(annotation):
        _check_typed_dict(value, annotation, path)
        return
    if not _is_instance(value, annotation):
        raise _mismatch(value, shown, path)


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
    pathlib = sys.modules.get("pathlib")
    if pathlib is not None and isinstance(value, pathlib.PurePath):
        return issubclass(kind, pathlib.PurePath)
    if kind is getattr(typing, "Protocol", None) or getattr(kind, "_is_protocol", False):
        return True
    # A generator or iterator's items, which travel as a list only if the function made one, are no
    # match.
    return False


def _is_typed_dict(kind: Any) -> bool:
    return hasattr(kind, "__total__") and hasattr(kind, "__required_keys__")


def _check_typed_dict(value: Any, annotation: Any, path: str) -> None:
    if type(value) is not dict:
        raise _mismatch(value, annotation, path)
    hints = field_hints(annotation)
    for key in annotation.__required_keys__:
        if key not in value:
            raise AnnotationMismatch(path, _shown(annotation), f"a dict without {key!r}", "dict")
    for key, item in value.items():
        if key not in hints:
            got = f"a dict with {_quoted(key)}"
            raise AnnotationMismatch(path, _shown(annotation), got, "dict")
        check(item, hints[key], f"{path}[{_quoted(key)}]")


def _mismatch(value: Any, annotation: Any, path: str) -> AnnotationMismatch:
    name = type(value).__name__
    article = "an" if name[0] in "aeiouAEIOU" else "a"
    return AnnotationMismatch(
        path, _shown(annotation), "None" if value is None else f"{article} {name}", name
    )


def _shown(annotation: Any) -> str:
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        return annotation.__name__
    return repr(annotation).replace("typing.", "")[:200]
