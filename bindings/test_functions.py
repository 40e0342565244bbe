# SPDX-License-Identifier: Apache-2.0
"""What travels with a function: loaded in another process that has neither this file nor Hutch, as
a cell does, and with nothing of this host in it.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib.util
import json
import marshal
import os
import pickle
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import hutch
from hutch import sandbox
from hutch._carry import pickling
from hutch._carry.functions import FunctionBytes, function_bytes, require_function, sources
from hutch._carry.pickling import marshalled
from hutch._carry.survey import Survey

LIMIT = 5
HOARD: list[int] = []
CLOUDPICKLE = str(Path(str(cloudpickle.__file__)).parent.parent)
LOADER = """
import marshal, pickle, sys, types
sys.path[:] = [p for p in sys.path if p and "site-packages" not in p]
import importlib.util
spec = importlib.util.spec_from_file_location(
    "cloudpickle", sys.argv[1] + "/cloudpickle/__init__.py",
    submodule_search_locations=[sys.argv[1] + "/cloudpickle"])
module = importlib.util.module_from_spec(spec)
sys.modules["cloudpickle"] = module
spec.loader.exec_module(module)
function, args = pickle.load(sys.stdin.buffer)
if function[:1] == b"\\x81":
    function = types.FunctionType(*marshal.loads(function[1:])[:2])
else:
    function = pickle.loads(function)
sys.stdout.buffer.write(pickle.dumps(function(*args)))
"""


def run_elsewhere(function: Callable[..., Any], *args: Any, **made: Any) -> Any:
    """Calls it in a fresh interpreter, in an empty directory, with cloudpickle alone."""
    data = bytes_of(FunctionBytes(require_function(function), **made))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", LOADER, CLOUDPICKLE],
        input=pickle.dumps((data, args)),
        capture_output=True,
        cwd="/",
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return pickle.loads(done.stdout)


def bytes_of(made: FunctionBytes) -> bytes:
    made.current()
    return made._data


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Point:
    x: int
    y: int = LIMIT

    def length(self) -> int:
        return self.x + self.y + helper(0)


def helper(x: int) -> int:
    return deeper(x) + LIMIT


def deeper(x: int) -> int:
    return x * 10


def test_helpers_and_globals_travel_by_value_transitively() -> None:
    assert run_elsewhere(helper, 3) == 35


def test_classes_enums_defaults_and_closures_travel() -> None:
    offset = 7

    def f(x: int = LIMIT, *, colour: Colour = Colour.RED) -> Any:
        point = Point(x)
        return point.length() + offset, colour.name, isinstance(point, Point)

    assert run_elsewhere(f) == (22, "RED", True)


def test_a_local_class_keeps_its_qualified_name() -> None:
    class Local:
        pass

    def f() -> str:
        return Local.__qualname__

    assert run_elsewhere(f) == Local.__qualname__ != "Local"


def test_a_recursive_sandboxed_function_is_the_plain_one_inside() -> None:
    @sandbox
    def factorial(n: int) -> int:
        return 1 if n < 2 else n * factorial(n - 1)

    assert run_elsewhere(factorial.__wrapped__, 5) == 120


@functools.lru_cache(maxsize=8)
def cached(n: int) -> int:
    return n if n < 2 else cached(n - 1) + cached(n - 2)


class Lazy:
    @functools.cached_property
    def value(self) -> int:
        return cached(10)


def test_cached_helpers_travel_by_value_with_an_empty_cache() -> None:
    def f() -> Any:
        before = cached.cache_info().currsize
        return before, Lazy().value, cached.cache_info().currsize, cached.__name__

    cached(5)
    assert run_elsewhere(f) == (0, 55, 8, "cached")


def test_what_a_cached_helper_uses_is_seen_when_it_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @functools.cache
    def limit() -> int:
        return LIMIT

    def f() -> int:
        return limit()

    made = FunctionBytes(f)  # type: ignore[arg-type]
    before = bytes_of(made)
    monkeypatch.setitem(globals(), "LIMIT", 6)
    assert bytes_of(made) != before


def test_asserts_that_pytest_rewrote_work_inside() -> None:
    def f(x: int) -> int:
        assert x > 1, "small"
        return x

    assert "@pytest_ar" in f.__code__.co_names, "the premise: this file is rewritten"
    assert run_elsewhere(f, 2) == 2


def test_no_path_of_this_host_travels() -> None:
    def f() -> Any:
        return helper(1), Point(1)

    data = bytes_of(FunctionBytes(require_function(f)))
    assert str(Path(__file__).parent).encode() not in data
    assert str(Path.home()).encode() not in data or str(Path.home()) == "/"


def test_annotations_do_not_drag_their_classes_along() -> None:
    def f(x: pytest.Item) -> pytest.Item | int:
        return 3

    f.__annotations__ = {"x": pytest.Item, "return": pytest.Item}
    assert run_elsewhere(f, 1) == 3


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A package of the caller's own, in which most needs what is not inside."""
    package = tmp_path / "ownproject"
    package.mkdir()
    (package / "__init__.py").write_text("from ownproject import tools\n")
    (package / "tools.py").write_text(
        "import pytest\n"
        "import ownproject\n"
        "RATE = 3\n"
        "def scale(x): return x * RATE\n"
        "def unused(): return pytest\n"
        "def entry(x): return ownproject.tools.scale(x)\n"
        "def importing(x):\n    from ownproject.tools import scale\n    return scale(x)\n"
        "def relative(x):\n    from . import tools\n    return tools.scale(x)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("ownproject.tools")
    for name in [name for name in sys.modules if name.startswith("ownproject")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["scale", "entry", "importing"])
def test_functions_of_the_callers_own_package_travel(project: types.ModuleType, name: str) -> None:
    assert run_elsewhere(getattr(project, name), 4) == 12


def test_a_module_travels_with_what_is_used_of_it(project: types.ModuleType) -> None:
    def f(x: int) -> Any:
        return project.scale(x)

    assert run_elsewhere(f, 2) == 6


def test_cloudpickles_registry_is_left_as_it_was(project: types.ModuleType) -> None:
    bytes_of(FunctionBytes(require_function(project.entry)))
    assert not cloudpickle.list_registry_pickle_by_value()


def test_an_installed_module_that_no_dependency_brings_is_an_error_before_sending() -> None:
    numpy = pytest.importorskip("numpy")

    def f() -> Any:
        return numpy.zeros(3)

    with pytest.raises(hutch.DependencyInstallError, match="numpy") as caught:
        FunctionBytes(require_function(f)).current()
    assert caught.value.requirement == "numpy" and "dependencies=" in caught.value.hint
    FunctionBytes(require_function(f), ("numpy>=1",)).current()


def test_a_dependency_of_a_dependency_is_there() -> None:
    pytest.importorskip("pandas")
    numpy = pytest.importorskip("numpy")

    def f() -> Any:
        return numpy.zeros(3)

    FunctionBytes(require_function(f), ("pandas",)).current()


def test_hutch_itself_is_not_inside() -> None:
    def f() -> Any:
        return hutch.run("1")

    with pytest.raises(hutch.SerializationError, match="not installed in the sandbox"):
        FunctionBytes(require_function(f)).current()


def test_a_captured_value_that_cannot_travel_is_named() -> None:
    lock = __import__("threading").Lock()

    def f() -> Any:
        return lock

    with pytest.raises(hutch.SerializationError, match="uses lock"):
        FunctionBytes(require_function(f)).current()


def test_a_function_that_refers_to_nothing_goes_by_marshal() -> None:
    def plain(x: int, y: str = "a", z: Any = (1, None)) -> Any:
        """With a text."""
        import math

        return [math.sqrt(x), y, z, [len(i) for i in ("a",)]]

    data = marshalled(plain)
    assert data is not None and data == marshalled(plain), "the same bytes: they are sent once"
    code, space, defaults = marshal.loads(data[1:])
    assert data[:1] == b"\x81" and defaults == ("a", (1, None))
    place = {"__name__": __name__, "__package__": __package__}
    assert space == {**place, "__file__": pickling.short_path(__file__)}
    assert code.co_name == "plain" and not code.co_filename.startswith("/")
    assert bytes_of(FunctionBytes(require_function(plain))) == data


def _with(**changes: Any) -> Any:
    def f(x: int = 1) -> int:
        return x

    for name, value in changes.items():
        setattr(f, name, value)
    return f


async def _awaited() -> None:
    pass


def _outer() -> Any:
    return lambda: helper(1)


_kept = 1


@pytest.mark.parametrize(
    "function",
    [
        helper,
        _outer,
        _awaited,
        lambda: _kept,
        (lambda value: lambda: value)(1),
        lambda *, a=1: a,
        _with(__defaults__=([],)),
        _with(__defaults__=((bytearray(),),)),
        _with(__kwdefaults__={"x": 1}),
        _with(mine=1),
        _with(__name__="other"),
        _with(__qualname__="other"),
        _with(__module__="json"),
        _with(__code__=_with().__code__.replace(co_consts=(None, memoryview(b"a")))),
        json.dumps,
    ],
)
def test_what_marshal_would_not_keep_is_pickled(function: Any) -> None:
    assert marshalled(function) is None


def test_bytes_are_made_once_while_nothing_changes() -> None:
    made = FunctionBytes(require_function(helper))
    assert made.current() is made.current()


def test_bytes_are_made_anew_when_a_global_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    made = FunctionBytes(require_function(helper))
    before = made.current()
    monkeypatch.setitem(globals(), "LIMIT", 6)
    assert made.current() is not before


def test_bytes_are_made_anew_when_a_helper_or_cell_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = FunctionBytes(require_function(helper))
    before = made.current()
    monkeypatch.setitem(globals(), "deeper", lambda x: x)
    assert made.current() is not before

    value = 1

    def f() -> int:
        return value

    of_f = FunctionBytes(require_function(f))
    first = of_f.current()
    value = 2
    assert of_f.current() is not first


def test_what_is_mutable_is_looked_at_for_each_call() -> None:
    def f() -> int:
        return len(HOARD)

    made = FunctionBytes(require_function(f))
    before = made.current()
    assert made.current() is before, "equal bytes are the same object: they are sent once"
    HOARD.append(1)
    try:
        assert made.current() is not before
    finally:
        HOARD.clear()


def test_sources_hold_the_lines_of_what_travels_and_no_others() -> None:
    made = FunctionBytes(require_function(helper))
    made.current()
    ((name, text),) = made.sources.items()
    assert not name.startswith("/")
    assert "def helper" in text and "def deeper" in text and "def test_" not in text
    lines = text.splitlines()
    assert lines[helper.__code__.co_firstlineno - 1].startswith("def helper")


def decorator(*args: Any) -> Any:
    return lambda function: function


@decorator(
    """MARK
def text() -> None:
""",
    "MARK",
)
@functools.cache
def decorated(a: int) -> int:
    return a + 1


computed = decorator("MARK")(lambda x: x + (
    100)), "MARK"  # fmt: skip


@decorator("MARK")
class Decorated:
    @decorator("MARK")
    def method(self) -> int:
        return 7


def test_what_decorators_are_given_does_not_travel() -> None:
    codes = [decorated.__wrapped__.__code__, computed[0].__code__, Decorated.method.__code__]
    for classes in (None, [Decorated]):
        ((_, text),) = sources(codes, classes).items()
        assert "MARK" not in text
        assert "@functools.cache\ndef decorated" in text and "return a + 1" in text
        assert "def method" in text and "return 7" in text
        if sys.version_info >= (3, 11):
            assert "x + (\n    100" in text
    assert "class Decorated" in text


def test_sources_stay_small() -> None:
    codes = [f.__code__ for f in vars(pickle).values() if isinstance(f, types.FunctionType)]
    whole = [m.__code__ for m in vars(pickle._Pickler).values() if hasattr(m, "__code__")]
    assert sum(map(len, sources(codes + whole * 5).values())) < 64 << 10


def test_carries_names_what_travels() -> None:
    carried = {item.name: item for item in FunctionBytes(require_function(helper)).carries()}
    assert carried["helper"].type == "function" and carried["LIMIT"].type == "int"
    assert all(item.size for item in carried.values())


def test_a_secret_of_the_environment_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "abcdefgh12345678")
    token = os.environ["SERVICE_TOKEN"]

    def f() -> str:
        return token

    made = FunctionBytes(require_function(f))
    with pytest.warns(UserWarning, match="SERVICE_TOKEN"):
        made.current()
    assert any("SERVICE_TOKEN" in item.warning for item in made.carries())


@pytest.mark.parametrize("thing", [print, Point, 3, staticmethod(helper)])
def test_what_is_no_plain_function_is_refused(thing: Any) -> None:
    with pytest.raises(TypeError):
        sandbox(thing)


def test_sandboxing_twice_is_refused() -> None:
    with pytest.raises(TypeError, match="already"):
        sandbox(sandbox(helper))


def test_signature_name_and_docstring_are_kept() -> None:
    import inspect

    @sandbox(timeout_sec=3)
    def documented(a: int, *, b: str = "x") -> int:
        """Says it."""
        return a

    assert documented.__name__ == "documented" and documented.__doc__ == "Says it."
    assert str(inspect.signature(documented)) == "(a: 'int', *, b: 'str' = 'x') -> 'int'"
    assert documented.local(4) == 4


def test_a_path_is_shortened() -> None:
    assert pickling.short_path("/nowhere/at/all/x.py") == "x.py"
    assert pickling.short_path("<stdin>") == "<stdin>"
    assert pickling.short_path(os.path.join(os.getcwd(), "a", "b.py")) == "a/b.py"


def test_models_that_name_one_another_travel_in_whatever_order_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    (tmp_path / "own_models.py").write_text(
        "from typing import Literal, Union\n"
        "from pydantic import BaseModel\n"
        "from pydantic.dataclasses import dataclass\n"
        "class Num(BaseModel):\n    value: int\n"
        "class Add(BaseModel):\n    op: Literal['add']\n    left: 'Expr'\n"
        "class Mul(BaseModel):\n    op: Literal['mul']\n    left: 'Expr'\n"
        "Expr = Union[Num, Add, Mul]\n"
        "Add.model_rebuild(); Mul.model_rebuild()\n"
        "@dataclass\nclass Pair:\n    left: Add\n    right: 'Pair | None' = None\n"
        "def outer_first():\n    return Add(op='add', left=Num(value=1)).model_dump()\n"
        "def inner_first():\n    n = Num(value=1)\n"
        "    return Mul(op='mul', left=Add(op='add', left=n)).model_dump()\n"
        "def dataclass_first():\n"
        "    return Pair(Add(op='add', left=Num(value='2'))).left.left.value\n"
        "def wrong():\n"
        "    try: Add(op='mul', left=1)\n"
        "    except ValueError as error: return error.error_count() > 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    own = importlib.import_module("own_models")
    try:
        added = {"op": "add", "left": {"value": 1}}
        for name, result in [
            ("outer_first", added),
            ("inner_first", {"op": "mul", "left": added}),
            ("dataclass_first", 2),
            ("wrong", True),
        ]:
            data = pickling.dumps(getattr(own, name))
            done = subprocess.run(
                [sys.executable, "-c", "import pickle, sys\n"
                 "print(pickle.load(sys.stdin.buffer)())"],
                input=data, capture_output=True, cwd="/", check=False,
            )  # fmt: skip
            assert done.stdout.decode().strip() == str(result), (name, done.stderr.decode())
        assert pydantic.VERSION and own.outer_first() == added  # nothing was taken from the classes
    finally:
        sys.modules.pop("own_models", None)


@functools.singledispatch
def described(value: object) -> str:
    return "any"


class OnlyAnArgument:
    own = "seen outside only"


def test_what_a_function_was_called_with_outside_does_not_travel() -> None:
    def f(value: object) -> str:
        return described(value)

    before = FunctionBytes(require_function(f)).current().sha256
    described(OnlyAnArgument())
    made = FunctionBytes(require_function(f))
    assert b"OnlyAnArgument" not in function_bytes(f, Survey(f, frozenset()))
    assert made.current().sha256 == before
