# SPDX-License-Identifier: Apache-2.0
"""Sandboxed functions and programs in pickles, by pickle and by cloudpickle. `.local` runs what
came back without a sandbox. tests/end_to_end/test_other_processes.py sends them to processes.
"""

from __future__ import annotations

import copy
import functools
import inspect
import json
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

import hutch
from hutch import Secret, Tool, sandbox
from hutch._errors import SerializationError
from hutch._tool_calls import ToolCall

FACTOR = 3
TOKEN = "of this test alone"


@sandbox(memory_mb=200)
def triple(x: int) -> int:
    return FACTOR * x


def helper(x: int) -> int:
    return FACTOR * x + 1


under_another_name = sandbox(helper)


class Model:
    def __init__(self, rate: int) -> None:
        self.rate = rate

    @sandbox
    def predict(self, x: int) -> int:
        return self.rate * x


class HoldsItself(Model):
    def __init__(self, rate: int) -> None:
        super().__init__(rate)
        self.own = self.predict


def by_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def by_cloudpickle(value: Any) -> Any:
    return cloudpickle.loads(cloudpickle.dumps(value))


BOTH = pytest.mark.parametrize("again", [by_pickle, by_cloudpickle])


def in_a_script(text: str) -> Any:
    """What a script prints, as JSON. Its functions are those of `__main__`."""
    start = "import json, pickle, sys\nimport cloudpickle, hutch\nfrom hutch import sandbox\n"
    done = subprocess.run(
        [sys.executable, "-c", start + text], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@BOTH
def test_one_of_a_module_goes_by_its_name(again: Callable[[Any], Any]) -> None:
    assert again(triple) is triple
    assert again(Model.predict) is Model.predict
    assert len(pickle.dumps(triple)) < 100


@BOTH
def test_one_with_other_options_goes_by_the_name_of_what_it_was_made_from(
    again: Callable[[Any], Any],
) -> None:
    changed = again(triple.options(timeout_sec=5).options(pids=9))
    assert changed._plain is triple._plain
    assert (changed._options.timeout_sec, changed._options.pids) == (5, 9)
    assert changed._options.memory_mb == 200
    assert len(pickle.dumps(triple.options(timeout_sec=5))) < 400


@BOTH
def test_a_method_takes_its_instance(again: Callable[[Any], Any]) -> None:
    method = again(Model(4).predict)
    assert method.local(5) == 20
    assert again(Model(4).predict.options(pids=9))._options.pids == 9


@BOTH
def test_one_without_a_name_goes_by_value(again: Callable[[Any], Any]) -> None:
    offset = 100

    @sandbox(memory_mb=150, dependencies=["six"], env={"A": "b"})
    def nested(x: int) -> int:
        """Adds."""
        return x + offset

    found = again(nested)
    assert found is not nested and found.local(1) == 101
    assert found._options == nested._options
    assert (found.__name__, found.__doc__) == ("nested", "Adds.")
    assert repr(found) == repr(nested) and inspect.signature(found) == inspect.signature(nested)
    assert again(sandbox(lambda x: x + offset)).local(1) == 101
    assert again(nested.options(pids=9))._options.pids == 9
    assert again(under_another_name).local(1) == 4


@BOTH
def test_what_refers_to_itself_comes_back_as_one(again: Callable[[Any], Any]) -> None:
    @sandbox
    def even(x: int) -> bool:
        return True if x == 0 else bool(odd.local(x - 1))

    @sandbox
    def odd(x: int) -> bool:
        return False if x == 0 else bool(slow_even.local(x - 1))

    slow_even = even.options(timeout_sec=60)
    found = again([even, even, odd])
    assert found[0] is found[1] and found[0].local(4) is True and found[2].local(4) is False
    holder = found[2]._plain.__closure__
    assert holder[0].cell_contents._options.timeout_sec == 60


def one_of_each_kind() -> list[Any]:
    @sandbox
    async def waits(x: int, *, y: int = 2) -> int:
        return x + y

    @sandbox
    def yields() -> Any:
        yield 1

    @sandbox
    async def yields_later() -> Any:
        yield 1

    return [waits, yields, yields_later]


@BOTH
def test_each_kind_comes_back_as_itself(again: Callable[[Any], Any]) -> None:
    for one in one_of_each_kind():
        assert type(again(one)) is type(one)


@BOTH
def test_what_is_given_as_text_goes_as_text(again: Callable[[Any], Any]) -> None:
    function = hutch.function("def f(x): return x", "f", pids=9)
    found = again(function)
    assert found._make_target.source == function._make_target.source  # type: ignore[attr-defined]
    assert (found.__name__, found._options) == ("f", function._options)
    assert again(function.options(pids=8))._options.pids == 8

    program = hutch.Program("echo $0", language="bash", filename="a.sh", memory_mb=100)
    same = again(program)
    assert repr(same) == repr(program) and same._text == program._text
    assert (same._language, same._options) == ("bash", program._options)
    assert again(program.options(pids=8))._options.pids == 8


def seen(text: str) -> None:
    pass


def search(query: str, limit: int = 5) -> list[str]:
    return [query] * limit


@BOTH
def test_options_of_every_sort_travel(again: Callable[[Any], Any]) -> None:
    given = triple.options(
        environment=hutch.Environment(["six"], allow_sdists=True),
        modules=[json],
        preload=["json"],
        setup=triple,
        pool=hutch.Pool(max_cells=2),
        mounts={"/data": "/usr"},
        policy=hutch.Policy.strict(),
        allow_network=["example.org"],
        labels={"a": "b"},
        on_stdout=seen,
    )
    assert again(given)._options == given._options._replace(modules=("json",))


def invoked(tool: Tool, args: Any, kwargs: Any) -> Any:
    return ToolCall(tool, args, kwargs).run()


@BOTH
def test_tools_travel(again: Callable[[Any], Any]) -> None:
    schema = {"type": "object", "properties": {"query": {"type": "string"}}}
    tools = [Tool(search, max_calls=2), Tool(seen, name="see", timeout_sec=9)]
    tools.append(Tool(search, name="given", input_schema=schema))
    tools[1].late.add("see", threading.Thread())  # a call that goes on stays here
    found = again(triple.options(tools=tools))._options.tools
    assert [tool.name for tool in found] == ["search", "see", "given"]
    assert [tool.stub() for tool in found] == [tool.stub() for tool in tools]
    assert invoked(found[0], ["a"], {"limit": 2}) == ["a", "a"] and found[0].max_calls == 2
    assert invoked(found[1], ["text"], {}) is None
    with pytest.raises(TypeError):
        invoked(found[0], [1], {})


@BOTH
def test_a_secret_goes_by_the_name_of_its_variable_alone(
    again: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUTCH_TEST_TOKEN", TOKEN)
    secret = Secret.from_env("HUTCH_TEST_TOKEN", "Bearer ", paths=["/v1"])
    asks = triple.options(secrets={"example.org": {"Authorization": secret}})
    assert TOKEN.encode() not in pickle.dumps(asks) + cloudpickle.dumps(asks)
    assert again(asks)._options == asks._options
    assert again(sandbox(lambda: 1).options(secrets=asks._options.secrets))._options.secrets

    for told in (triple, sandbox(lambda: 1), hutch.Program("print(1)")):
        by_value: Any = told.options(secrets={"example.org": {"Authorization": Secret("value")}})
        with pytest.raises(SerializationError, match=r"no pickle may hold\n.*Secret\.from_env"):
            again(by_value)


@BOTH
def test_the_value_of_a_variable_is_warned_of_or_refused(
    again: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUTCH_TEST_TOKEN", TOKEN)
    token = TOKEN

    def asks() -> str:
        return token

    warned = sandbox(asks)
    with pytest.warns(UserWarning, match="token is the value of .*HUTCH_TEST_TOKEN.* a pickle"):
        again(warned)
    with pytest.warns(UserWarning, match="HUTCH_TEST_TOKEN, and is written into a pickle"):
        again(triple.options(env={"T": TOKEN}))
    environ = os.environ

    def search(query: str) -> str:
        return token

    with pytest.warns(UserWarning, match="lambda> holds the value of the environment variable"):
        again(sandbox(lambda: environ))
    with pytest.warns(UserWarning, match="the tool search holds .*HUTCH_TEST_TOKEN"):
        again(sandbox(lambda: 1, tools=[search]))
    rate: Any = token
    for holds in (Model(rate), HoldsItself(rate)):
        with pytest.warns(
            UserWarning, match=f"the {type(holds).__name__} holds .*HUTCH_TEST_TOKEN"
        ):
            assert again(holds.predict)._bound[0].rate == token
    careful = hutch.Policy(refuse_secrets=True)
    for one in (
        Model(rate).predict.options(policy=careful),
        sandbox(asks, policy=careful),
        warned.options(policy=careful),
        sandbox(lambda: 1, policy=careful, tools=[search]),
        triple.options(policy=careful, env={"T": TOKEN}),
        hutch.Program("print(1)", policy=careful, env={"T": TOKEN}),
    ):
        for _ in range(2):
            with pytest.raises(SerializationError, match=r"which .* policy refuses"):
                again(one)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again(sandbox(lambda: 1, policy=careful, env={"T": "another text"}))
        again(sandbox(lambda: "of this test alone", policy=careful))  # its code has it, no variable
        again(triple)
        again(Model(4).predict.options(policy=careful))


def test_a_copy_is_the_function_itself_and_of_a_method_one_of_a_copied_instance() -> None:
    nested = sandbox(lambda: 1)
    assert copy.copy(nested) is copy.deepcopy(nested) is nested
    model = Model(4)
    method = model.predict
    copied = copy.deepcopy(method)
    model.rate = 5
    assert (copied.local(1), method.local(1)) == (4, 5)


def test_one_of_main_goes_by_name_for_pickle_and_by_value_for_cloudpickle() -> None:
    script = """
FACTOR = 3
@sandbox
def f(x): return FACTOR * x
def mentions(x): return f.local(x)
@sandbox
def factorial(n): return 1 if n < 2 else n * factorial.local(n - 1)
again = cloudpickle.loads(cloudpickle.dumps([f, mentions, factorial, f.options(pids=9)]))
named = pickle.loads(pickle.dumps([f, factorial, f.options(pids=9)]))
both = pickle.dumps(f), cloudpickle.dumps(f)
del f, FACTOR
print(json.dumps([
    again[0].local(2), again[1](2), again[2].local(4), again[3].local(2), again[3]._options.pids,
    named[1] is factorial, named[2]._plain is named[0]._plain, named[2]._options.pids,
    [b"FACTOR" in one for one in both],
]))
"""
    assert in_a_script(script) == [6, 6, 24, 6, 9, True, True, 9, [False, True]]


def test_a_class_that_only_the_annotation_names_travels() -> None:
    script = """
from __future__ import annotations
import dataclasses, subprocess
@dataclasses.dataclass
class Point: x: int
@sandbox
def f(x) -> list[Point]: return [x]
other = "import pickle, sys; f = pickle.load(sys.stdin.buffer); print(f._resolved().named_types)"
done = subprocess.run([sys.executable, "-c", other], input=cloudpickle.dumps(f), check=True,
                      stdout=subprocess.PIPE)
print(json.dumps("Point" in done.stdout.decode()))
""".replace("from __future__ import annotations\n", "")
    script = script.replace("-> list[Point]", '-> "list[Point]"')
    assert in_a_script(script) is True


def test_a_module_that_cloudpickle_was_told_to_send_is_sent() -> None:
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        data = cloudpickle.dumps(triple)
        assert pickle.loads(pickle.dumps(triple)) is triple
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    found = cloudpickle.loads(data)
    assert found is not triple and found.local(2) == 6


@BOTH
def test_what_cannot_be_written_is_an_error_that_names_it(again: Callable[[Any], Any]) -> None:
    lock = threading.Lock()

    @sandbox
    def holds() -> bool:
        return lock.locked()

    for _ in range(2):
        with pytest.raises(
            SerializationError, match=r"holds uses lock \(lock\).*\n.*make it inside"
        ):
            again(holds)


def test_inspect_sees_what_kind_of_function_it_is() -> None:
    waits, *others = one_of_each_kind()
    kinds = (
        inspect.iscoroutinefunction,
        inspect.isgeneratorfunction,
        inspect.isasyncgenfunction,
    )
    found = [[kind(one) for kind in kinds] for one in (triple, waits, *others)]
    assert found == [
        [False, False, False],
        [True, False, False],
        [False, True, False],
        [False, False, True],
    ]
    assert inspect.iscoroutinefunction(functools.partial(waits, 1))
    assert inspect.iscoroutinefunction(waits.options(pids=9))
    assert (waits.__defaults__, waits.__kwdefaults__) == (None, {"y": 2})
    assert not inspect.iscoroutinefunction(hutch.function("async def f(): pass", "f"))
    assert not inspect.isfunction(triple)  # what is one is called by its code, without a sandbox
