# SPDX-License-Identifier: Apache-2.0
"""Tools of sandboxed functions and programs. Those of sessions: test_session.py."""

from __future__ import annotations

import asyncio
import datetime
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from support import until

import hutch
from hutch import Session, StopExec, Tool, sandbox

NOT_FOR_THE_SANDBOX = "kept by the host"
calls: list[tuple[str, int]] = []


def search(query: str, limit: int = 3) -> list[str]:
    """Finds pages."""
    calls.append((query, threading.get_ident()))
    return [f"{query} {i} of {len(NOT_FOR_THE_SANDBOX)}" for i in range(limit)]


@dataclass
class Point:
    x: int
    y: int = 0


class Shop:
    def price(self, item: str) -> int:
        return len(item)


@pytest.fixture(scope="module", autouse=True)
def _idle_threads_end_soon() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hutch._calls.threads._IDLE_SEC", 0.5)
        yield


def test_a_function_calls_a_tool_that_it_names() -> None:
    @sandbox(tools=[search])
    def work(text: str) -> list[str]:
        return search(text, limit=2)

    calls.clear()
    assert work("rain") == ["rain 0 of 16", "rain 1 of 16"]
    assert work("sun") == ["sun 0 of 16", "sun 1 of 16"]
    assert calls == [("rain", threading.get_ident()), ("sun", threading.get_ident())]


def test_what_a_tool_is_made_of_does_not_travel() -> None:
    @sandbox(tools=[search])
    def work() -> list[str]:
        return [search.__module__, str(search.__globals__.get("NOT_FOR_THE_SANDBOX"))]

    assert work() == ["hutch_tools", "None"]
    assert "NOT_FOR_THE_SANDBOX" not in [one.name for one in work.carries()]

    @sandbox  # the control: without tools= it is a function like any other
    def plain() -> str:
        return str(search.__globals__.get("NOT_FOR_THE_SANDBOX"))

    assert plain() == NOT_FOR_THE_SANDBOX


@pytest.mark.parametrize("how", ["argument", "closure", "default", "helper", "method", "tool"])
def test_a_tool_is_its_stub_wherever_it_is_named(how: str) -> None:
    tool, shop = Tool(search), Shop()
    named = search

    def helper() -> list[str]:
        return named("h", limit=1)

    functions: dict[str, Any] = {
        "argument": lambda given: given("a", limit=1),
        "closure": lambda: named("c", limit=1),
        "default": lambda given=named: given("d", limit=1),
        "helper": lambda: helper(),
        "method": lambda: [str(shop_price("four"))],
        "tool": lambda: tool("t", limit=1),  # type: ignore[operator]
    }
    shop_price = shop.price
    work = functions[how]
    work.__name__ = "work"
    sandboxed = sandbox(tools=[shop.price if how == "method" else tool])(work)
    value = sandboxed(search) if how == "argument" else sandboxed()
    assert value == (["4"] if how == "method" else [f"{how[0]} 0 of 16"])


def test_a_program_and_a_function_given_as_text_have_them() -> None:
    text = "from hutch_tools import call\nprint(search('a', 1), call('search', 'b', limit=1))"
    assert hutch.run(text, tools=[search]).stdout == "['a 0 of 16'] ['b 0 of 16']\n"
    program = hutch.Program("import sys; print(search(sys.stdin.read(), 1))", tools=[search])
    for text in ("x", "y"):  # the second is loaded ahead
        assert program.run(stdin=text).stdout == f"['{text} 0 of 16']\n"
    function = hutch.function("def work(x): return search(x, 1)", "work", tools=[search])
    assert [function(x) for x in "pq"] == [["p 0 of 16"], ["q 0 of 16"]]


def pick(mode: str, count: int = 1, *, at: Point | None = None) -> list[Point]:
    """Picks some."""
    return [at or Point(count)]


def test_a_tool_has_a_signature_and_its_documentation_inside() -> None:
    with Session(tools=[pick, search]) as s:
        shown = s.exec("import inspect\nstr(inspect.signature(pick)), inspect.getdoc(pick)")
        signature, documentation = shown.value
        wanted = "(mode: str, count: int = ..., *, at: Point | None = ...) -> list[Point]"
        assert signature == wanted
        assert documentation.startswith("Picks some.\n\nclass Point(TypedDict):\n    x: int\n")
        assert "pick(mode: str, count: int = ...," in s.exec("help(pick)").stdout
        assert s.exec("pick('a', at={'x': 5})").value == [{"x": 5, "y": 0}]


KEY = "sk-of-the-host"


def ask(text: str, key: str = KEY, *, more: Point = Point(77)) -> str:  # noqa: B008
    """Asks."""
    return f"{text} {key == KEY} {more.x}"


def test_no_default_of_a_tool_is_in_the_sandbox() -> None:
    """The attack reads all that the process has; the control finds a value that does travel."""
    look = (
        "import gc, inspect, hutch_tools\n"
        "seen = [repr(inspect.signature(ask)), ask.__doc__]\n"
        "seen += [repr(vars(one)) for one in (ask, hutch_tools)]\n"
        "seen += [repr(o) for o in gc.get_objects() if type(o) in (dict, list, tuple)\n"
        "         and len(o) < 50]\n"
        "words = [''.join(word) for word in (('sk-of-', 'the-host'), ('Ask', 's.'))]\n"
        "[any(word in text for text in seen) for word in words]"
    )
    with Session(tools=[ask]) as s:
        assert s.exec(look).value == [False, True]
        assert s.exec("ask('a'), ask('a', 'b')").value == ("a True 77", "a False 77")
    tool = Tool(ask)  # as its caller shows it
    assert KEY in tool.stub() and tool.schema["properties"]["key"]["default"] == KEY


def call(text: str) -> str:
    return f"called {text}"


def test_tools_named_like_functions_of_hutch_tools_leave_those_there() -> None:
    @sandbox(tools=[search, call])
    def work() -> list[Any]:
        import hutch_tools  # type: ignore[import-not-found]

        return [
            search("a", 1),
            call("b"),
            hutch_tools.search("pages"),
            hutch_tools.call("call", "c"),
        ]

    assert work() == [["a 0 of 16"], "called b", ["search"], "called c"]
    with Session(tools=[search, call]) as s:
        assert s.exec("search('a', 1), call('b')").value == (["a 0 of 16"], "called b")
        found = s.exec("import hutch_tools\nhutch_tools.search(), hutch_tools.call('call', 'd')")
        assert found.value == (["search", "call"], "called d")


def test_a_tool_may_have_a_schema_of_its_own() -> None:
    def find(**arguments: Any) -> Any:
        return arguments

    del find.__annotations__["arguments"]
    properties = {"query": {"type": "string"}, "limit": {"type": "integer", "maximum": 9}}
    schema = {"properties": properties, "required": ["query"], "additionalProperties": False}
    with Session(tools=[Tool(find, input_schema=schema)]) as s:
        assert s.exec("find(query='a', limit=2)").value == {"query": "a", "limit": 2}
        for source in (
            "find()",
            "find(query=1)",
            "find(query='a', limit=10)",
            "find(query='', b=1)",
        ):
            error = s.exec(source).error
            assert error is not None and error.type == "TypeError", source
        names = s.exec("import inspect\nstr(inspect.signature(find))").value
        assert names == "(*, query: str, limit: int = ...) -> Any"


def test_a_schema_may_name_what_no_parameter_can_be_called() -> None:
    def mail(**fields: Any) -> Any:
        return sorted(fields)

    properties = {"from": {"type": "string"}, "a-b": {}, "others": {}}
    with Session(tools=[Tool(mail, input_schema={"properties": properties})], memory_mb=256) as s:
        assert s.exec("mail(**{'from': 'x', 'a-b': 1}, others=2)").value == [
            "a-b",
            "from",
            "others",
        ]
        assert "'from': str" in s.exec("mail.__doc__").value


def test_values_of_the_standard_library_are_arguments_and_results() -> None:
    def later(day: datetime.date, by: Decimal) -> datetime.datetime:
        return datetime.datetime.combine(day, datetime.time(int(by)))

    with Session(tools=[later]) as s:
        code = "import datetime, decimal\nlater(datetime.date(2024, 2, 29), decimal.Decimal(5))"
        for source in (code, "later('2024-02-29', '5')"):
            assert s.exec(source).value == datetime.datetime(2024, 2, 29, 5)


def test_a_result_whose_package_is_not_inside_says_what_may_be_returned() -> None:
    def measure() -> Any:
        return hutch.Usage()

    with Session(tools=[measure], memory_mb=256) as s:
        error = s.exec("measure()").error
        assert error is not None and error.message.startswith("it ran, but its result cannot be")
        assert error.message.endswith("a tool may return plain data, or what packages of "
                                      "dependencies= have")  # fmt: skip


def test_arguments_are_checked_and_built_before_the_function_sees_them() -> None:
    seen: list[Any] = []

    def move(point: Point, by: int = 1) -> Point:
        seen.append(point)
        return Point(point.x + by, point.y)

    @sandbox(tools=[move])
    def good() -> Any:
        return move(Point(1, 2), by=3)

    @sandbox(tools=[move])
    def bad() -> Any:
        return move({"x": "one"}, by=3)  # type: ignore[arg-type]

    assert good() == {"x": 4, "y": 2}
    error = bad.run().error
    assert (
        error is not None and error.type == "TypeError" and "point.x must be int" in error.message
    )
    assert seen == [Point(1, 2)]


def test_what_a_tool_raises_is_raised_inside_by_name_and_message() -> None:
    def find(name: str) -> str:
        raise LookupError(f"no {name} in {__file__}")

    @sandbox(tools=[find])
    def work() -> str:
        try:
            find("x")
        except LookupError as error:
            return f"{error.args} {error.__cause__}"
        return "not raised"

    assert work() == f"('no x in {__file__}',) None"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError


class ManyErrors(Exception):
    """As the groups that task groups of asyncio and anyio raise, which Python 3.10 has not."""

    def __init__(self, text: str, exceptions: list[Exception]) -> None:
        super().__init__(text)
        self.exceptions = tuple(exceptions)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("plum"), "KeyError: 'plum'"),
        (KeyError(5), "KeyError: '5'"),
        (KeyError("a", "b"), "KeyError: \"('a', 'b')\""),
        (Unprintable(), "Unprintable: (its text cannot be had: ValueError)"),
        (
            ManyErrors("two", [OSError("down"), ManyErrors("one", [KeyError("k")])]),
            "ManyErrors: two: OSError: down; ManyErrors: one: KeyError: k",
        ),
    ],
)
def test_the_message_of_what_a_tool_raises_says_what_failed(error: Exception, text: str) -> None:
    def fail() -> None:
        raise error

    @sandbox(tools=[fail])
    def work() -> str:
        try:
            fail()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "not raised"

    assert work() == text


def test_a_tool_ends_the_call() -> None:
    def finish(answer: str) -> None:
        raise StopExec

    def stop(text: str) -> None:
        raise KeyboardInterrupt(text)

    @sandbox(tools=[finish, stop])
    def work(how: str) -> str:
        try:
            finish("42") if how == "finish" else stop(how)
        finally:
            print("cleaned up")
        return "went on"

    outcome = work.run("finish")
    assert outcome.status == "raised" and outcome.error is not None
    assert outcome.error.type == "StopExec" and outcome.stdout == "cleaned up\n"
    with pytest.raises(KeyboardInterrupt, match="by hand"):
        work.run("by hand")


def test_calls_are_limited_and_approved() -> None:
    tool = Tool(search, max_calls=2, approve=lambda name, given: given["query"] != "secret")

    @sandbox(tools=[tool])
    def work() -> list[str]:
        found = []
        for text in ("secret", "a", "b"):
            try:
                found += search(text, 1)
            except Exception as error:
                found.append(type(error).__name__)
        return found

    assert work() == ["PermissionError", "a 0 of 16", "RuntimeError"]
    assert work() == ["PermissionError", "a 0 of 16", "RuntimeError"]  # counted for each call


def test_who_approves_may_be_awaited() -> None:
    asked: list[str] = []

    async def approve(name: str, arguments: dict[str, Any]) -> bool:
        await asyncio.sleep(0)
        asked.append(arguments["query"])
        return bool(arguments["query"] == "a")

    tools = [Tool(search, approve=approve, timeout_sec=timeout) for timeout in (None, 60.0)]
    code = "found = []\nfor query in 'ab':\n  try: found += search(query, 1)\n"
    code += "  except PermissionError as error: found += [str(error)]\nfound"
    wanted = ["a 0 of 16", "this call of search() was not approved"]

    async def main(tool: Tool) -> None:
        async with hutch.AsyncSession(tools=[tool]) as s:
            assert (await s.exec(code)).value == wanted

        @sandbox(tools=[tool])
        def work(query: str) -> list[str]:
            return search(query, 1)

        assert await work.aio("a") == wanted[:1]
        with pytest.raises(hutch.SandboxExecutionError, match="not approved"):
            await work.aio("b")

    for tool in tools:
        asyncio.run(main(tool))
    assert asked == [*"abab"] * 2
    for kind in (lambda: Session(tools=tools[:1]), lambda: hutch.run("1", tools=tools[:1])):
        with pytest.raises(TypeError, match="is async"):
            kind()


def test_no_answer_but_true_approves() -> None:
    async def later() -> bool:
        return True

    given = {"no": "no", "later": later}

    def approve(name: str, arguments: dict[str, Any]) -> Any:
        found = given.get(arguments["query"], True)
        return found() if callable(found) else found

    with Session(tools=[Tool(search, approve=approve)]) as s:
        assert s.exec("search('a', 1)").value == ["a 0 of 16"]
        for query in given:
            assert s.exec(f"search('{query}')").status == "raised"


def test_an_async_tool_runs_on_the_loop_of_who_awaits() -> None:
    loops = []

    async def later(n: int) -> int:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0.001)
        return n + 1

    @sandbox(tools=[later])
    def work(n: int) -> Any:
        return later(n)

    async def main() -> None:
        assert await asyncio.gather(*(work.aio(n) for n in range(3))) == [1, 2, 3]
        outcome = await hutch.run_aio("print(later(4))", tools=[later])
        assert outcome.stdout == "5\n"
        assert {*loops} == {asyncio.get_running_loop()}

    asyncio.run(main())
    with pytest.raises(TypeError, match=r"later\(\) is async: await the function, or its .aio"):
        work(1)


def test_many_calls_at_once_each_have_their_own() -> None:
    @sandbox(tools=[search])
    def work(text: str) -> str:
        return search(text, 1)[0]

    wanted = [f"{i} 0 of 16" for i in range(20)]
    assert list(work.map(map(str, range(20)))) == wanted
    assert list(work.map(map(str, range(20)), chunksize=7)) == wanted
    futures = [work.submit(str(i)) for i in range(20)]
    assert [one.result() for one in futures] == wanted


@pytest.mark.parametrize("isolation", ["container", "gvisor"])
def test_on_other_rungs(isolation: Any) -> None:
    @sandbox(tools=[search], isolation=isolation)
    def work() -> list[str]:
        return search("x", 1)

    assert work() == ["x 0 of 16"]


def test_a_loop_that_is_closed_ends_the_tools_that_it_ran_for_a_generator() -> None:
    begun = asyncio.Event()

    async def forever() -> None:
        begun.set()
        await asyncio.sleep(3600)

    @sandbox(tools=[hutch.Tool(forever)], timeout_sec=60)
    async def ask() -> AsyncIterator[str]:
        try:
            await forever()
        except RuntimeError as error:
            yield str(error)
        yield "returned"

    async def first() -> str:
        return await ask().__anext__()

    loop = asyncio.new_event_loop()
    call = loop.create_task(first())
    loop.run_until_complete(begun.wait())
    before = {one for one in threading.enumerate() if one.name.startswith("hutch")}
    assert before and not call.done()
    loop.close()
    until(lambda: not any(one.is_alive() for one in before), sec=30)  # before its time limit
    call._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_generator_that_ends_cancels_the_tool_that_runs() -> None:
    said: list[str] = []
    begun = asyncio.Event()

    async def forever() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            said.append("cancelled")
            raise

    ask = sandbox(tools=[forever], timeout_sec=60)(_asks_forever)

    async def main() -> None:
        with pytest.raises(hutch.SandboxTimeoutError):
            async for _ in ask.options(timeout_sec=3)():
                pass
        assert said == ["cancelled"]
        begun.clear()
        items = ask()
        task = asyncio.ensure_future(items.__anext__())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await items.aclose()
        while len(said) < 2:
            await asyncio.sleep(0.01)

    asyncio.run(main())


async def _asks_forever() -> AsyncIterator[None]:
    yield await forever()  # type: ignore[name-defined] # noqa: F821


def test_calls_that_take_too_long_do_not_pile_up() -> None:
    over = threading.Event()

    def wait() -> None:
        over.wait(60)

    with hutch.Session(tools=[hutch.Tool(wait, timeout_sec=0.01)]) as s:
        s.exec(
            "said = set()\n"
            "for _ in range(30):\n"
            "    try: wait()\n"
            "    except Exception as error: said.add((type(error).__name__, str(error)[:19]))"
        )
        assert sorted(s["said"]) == [
            ("RuntimeError", "wait() is busy: 16 "),
            ("TimeoutError", "wait() took longer "),
        ]
        assert sum(one.name == "hutch-tool-wait" for one in threading.enumerate()) == 16
        over.set()
        until(lambda: "hutch-tool-wait" not in {one.name for one in threading.enumerate()})
        assert s.exec("wait()").unwrap() is None


def test_a_forked_child_and_a_later_thread_have_none() -> None:
    @sandbox(tools=[search])
    def fork() -> str:
        import os

        read, write = os.pipe()
        if os.fork() == 0:
            try:
                search("child")
                os.write(write, b"called")
            except RuntimeError:
                os.write(write, b"refused")
            os._exit(0)
        os.wait()
        return os.read(read, 100).decode()

    calls.clear()
    assert fork() == "refused" and calls == []


def test_it_is_refused_where_it_cannot_be() -> None:
    with pytest.raises(ValueError, match='tools= with isolation="shared" is not supported'):
        sandbox(tools=[search], isolation="shared")
    with pytest.raises(TypeError, match="tools= takes a list of functions"):
        sandbox(tools=search)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no annotation"):
        sandbox(tools=[Tool(lambda x: x, name="bare")])
    with pytest.raises(ValueError, match="two tools have the name 'search'"):
        sandbox(tools=[search, Tool(search)])
    assert sandbox(tools=None)(lambda: 1)() == 1  # type: ignore[arg-type]


def test_a_cell_that_asks_for_what_is_not_there_gets_an_error() -> None:
    @sandbox(tools=[search])
    def forged() -> list[str]:
        from hutch_tools import call  # type: ignore[import-not-found]

        found = []
        for name in ("open", "__import__", "search\0"):
            try:
                call(name, "x")
            except Exception as error:
                found.append(f"{type(error).__name__}: {error}")
        return found

    assert all(one.startswith("RuntimeError: there is no tool") for one in forged())


@pytest.mark.parametrize("tool_time", ["included", "excluded"])
def test_the_time_of_tools_may_be_left_out_of_a_sessions_limit(tool_time: Any) -> None:
    def wait() -> None:
        time.sleep(0.7)

    with hutch.Session(tools=[wait], timeout_sec=1, tool_time=tool_time) as s:
        outcome = s.exec("for _ in range(2): wait()\n'went on'")
        if tool_time == "included":
            assert outcome.limit == "time"
        else:
            assert outcome.value == "went on"
        # What it takes itself counts all the same, at the agent too.
        assert s.exec("wait()\nwhile True: pass").limit == "time"
        assert s.exec("1 + 1").value == 2


def test_a_slow_tool_is_the_calls_own_time() -> None:
    def wait() -> None:
        time.sleep(0.7)

    @sandbox(tools=[wait], timeout_sec=0.3)
    def work() -> str:
        wait()
        return "went on"

    assert work.run().limit == "time"
