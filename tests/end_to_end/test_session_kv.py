# SPDX-License-Identifier: Apache-2.0
"""Keys and values of a session: the same outside and inside, whatever becomes of the cell."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hutch import AsyncSession, KeyValueLimit, Session, sandbox

KV = "from hutch_tools import kv\n"


@pytest.fixture
def s() -> Iterator[Session]:
    with Session(memory_mb=256, timeout_sec=20) as session:
        yield session


def run(s: Session, source: str) -> Any:
    return s.exec(KV + source).unwrap()


def test_both_sides_use_the_same_keys(s: Session) -> None:
    s.kv.set("user", "42")
    assert not s.info()["started"]
    assert run(s, "kv.get('user'), kv.get('none'), kv.get('none', 7)") == ("42", None, 7)
    assert run(s, "kv.set('raw', bytes(range(256))); kv.set('é\\ud800', '\\ud800')") is None
    assert s.kv.get("raw") == bytes(range(256)) and s.kv.get("é\ud800") == "\ud800"
    assert run(s, "kv.keys()") == s.kv.keys() == ["raw", "user", "é\ud800"]
    assert run(s, "kv.keys('us'), kv.items('us')") == (["user"], [("user", "42")])
    assert run(s, "kv.delete('raw'), kv.delete('raw')") == (True, False)
    assert s.kv.delete("user") and run(s, "kv.get('user')") is None


def test_values_of_a_mebibyte_and_all_items_go_both_ways(s: Session) -> None:
    run(s, "for i in range(6): kv.set(f'large {i}', bytes([i]) * (1 << 20))")
    assert [value[:1] for _, value in s.kv.items()] == [bytes([i]) for i in range(6)]
    for i in range(3000):
        s.kv.set(f"small {i:04}", str(i))
    assert run(s, "items = kv.items(); len(items), items[5][0], items[-1]") == (
        3006, "large 5", ("small 2999", "2999"))  # fmt: skip
    assert run(s, "[type(v).__name__ for _, v in items[5:7]]") == ["bytes", "str"]
    assert run(s, "items == sorted(items) and len(kv.keys()) == 3006")


ENDS = {
    "crash": "import os; os._exit(3)",
    "time": "sum(range(10**12))",
    "memory": "x = [bytearray(1 << 20) for _ in range(4000)]",
}


@pytest.mark.parametrize("end", ENDS)
def test_values_stay_when_the_interpreter_ends(s: Session, end: str) -> None:
    seconds = 2 if end == "time" else 60
    outcome = s.exec(f"{KV}kv.set('last', 'before')\n{ENDS[end]}", timeout_sec=seconds)
    assert outcome.status in ("died", "limit") and outcome.restarted
    assert s.kv.get("last") == "before"
    assert run(s, "kv.get('last')") == "before"


def test_values_stay_when_the_session_is_reset_or_closed(s: Session) -> None:
    run(s, "kv.set('a', '1')")
    s.reset()
    assert run(s, "kv.get('a')") == "1"
    s.reset(files=True)
    assert run(s, "kv.get('a')") == "1"
    s.close()
    assert s.kv.get("a") == "1" and s.kv.keys() == ["a"]


def test_threads_inside_take_turns(s: Session) -> None:
    source = """
import threading
def use(number):
    for i in range(20):
        kv.set(f'{number} {i}', str(i))
        found.append(kv.get(f'{number} {i}') == str(i))
found = []
threads = [threading.Thread(target=use, args=(n,)) for n in range(5)]
[t.start() for t in threads]; [t.join() for t in threads]
len(found), all(found)
"""
    assert run(s, source) == (100, True)
    assert len(s.kv.keys()) == 100


def test_the_host_may_use_it_while_code_runs(s: Session) -> None:
    def answer() -> None:
        while s.kv.get("question") is None:
            pass
        s.kv.set("answer", "yes")

    thread = threading.Thread(target=answer)
    thread.start()
    source = "import time\nkv.set('question', '?')\nwhile not kv.get('answer'): time.sleep(0.01)\n"
    assert run(s, source + "kv.get('answer')") == "yes"
    thread.join()


def test_a_child_of_the_session_has_the_same(s: Session) -> None:
    inner = s.child()
    inner.exec(KV + "kv.set('a', '1')").unwrap()
    assert inner.kv.get("a") == "1" and run(s, "kv.get('a')") == "1"


def test_code_within_a_tools_call_uses_it_too() -> None:
    def run_it(source: str) -> Any:
        s.kv.set("from", "tool")
        return s.exec(source).unwrap()

    with Session(memory_mb=256, tools=[run_it]) as s:
        inner = KV + "kv.set('inner', kv.get('from') + ' ' + kv.get('outer')); kv.get('inner')"
        source = f"kv.set('outer', 'code')\n[run_it({inner!r}), kv.get('inner')]"
        assert run(s, source) == ["tool code", "tool code"]


def test_a_process_that_the_code_forks_cannot_use_it(s: Session) -> None:
    source = """
import os
reader, writer = os.pipe()
if os.fork() == 0:
    try: kv.set('a', '1')
    except RuntimeError as error: os.write(writer, str(error).encode())
    os._exit(0)
os.wait()
os.read(reader, 1000).decode()
"""
    assert "in its own process" in run(s, source)
    assert s.kv.keys() == []


def test_a_thread_that_stays_cannot_use_it_between_calls(s: Session) -> None:
    source = """
import threading
def later():
    go.wait()
    try: kv.set('a', '1')
    except RuntimeError as error: said.append(str(error))
    done.set()
go, done, said = threading.Event(), threading.Event(), []
def at_end():
    import time
    while kv._dialogue.call_id: time.sleep(0.01)
    go.set()
threading.Thread(target=later).start()
threading.Thread(target=at_end).start()
"""
    run(s, source)
    while not (found := s.exec("said").value):  # one that came too early goes on within this call
        pass
    assert "only while a call runs" in found[0] and s.kv.keys() == []


def test_what_is_too_large_is_an_error_that_code_can_catch(s: Session) -> None:
    source = """
def limit(key, value):
    try: kv.set(key, value)
    except kv.Limit as error: return error.limit, str(error)
[limit('k' * 257, ''), limit('é' * 200, ''),
 limit('a', bytes(2 << 20)), limit('a', 'é' * (1 << 20))]
"""
    found = run(s, source)
    assert [limit for limit, _ in found] == ["key_bytes", "key_bytes", "value_bytes", "value_bytes"]
    assert all("at most" in text for _, text in found) and s.kv.keys() == []
    error = s.exec(KV + "\nkv.set('k' * 300, '')").error
    assert error is not None and (error.type, error.line) == ("KeyValueLimit", 3)
    for wrong in ("kv.set('a', 1)", "kv.set(1, 'a')", "kv.get(None)", "kv.set('a', object())"):
        error = s.exec(KV + wrong).error
        assert error is not None and error.type == "TypeError", wrong
    with pytest.raises(KeyValueLimit, match="a value of 2,097,152 bytes is too large"):
        s.kv.set("a", bytes(2 << 20))


def test_only_a_session_has_it() -> None:
    def size(text: str) -> int:
        return len(text)

    @sandbox(tools=[size])
    def use() -> str:
        import hutch_tools

        return str(getattr(hutch_tools, "kv", "none"))

    assert use() == "none"


def test_a_tool_of_that_name_is_found_by_its_name() -> None:
    def kv(key: str) -> str:
        return key + "!"

    with Session(tools=[kv]) as s:
        assert s.exec("import hutch_tools\nkv('a') + hutch_tools.call('kv', 'b')").value == "a!b!"
        assert s.exec("hutch_tools.kv.set('a', '1'); hutch_tools.kv.get('a')").value == "1"


def test_an_async_session_awaits_it() -> None:
    async def main() -> None:
        async def run_it(source: str) -> Any:
            await s.kv.set("tool", "async")
            return (await s.exec(source)).unwrap()

        async with AsyncSession(memory_mb=256, tools=[run_it]) as s:
            await s.kv.set("a", "1")
            source = KV + "kv.set('b', kv.get('a') * 2)\n"
            source += "run_it(\"kv.set('c', kv.get('tool'))\")\nkv.keys()"
            assert (await s.exec(source)).unwrap() == ["a", "b", "c", "tool"]
            assert await s.kv.items("b") == [("b", "11")] and await s.kv.get("c") == "async"
            assert await s.kv.delete("a") and await s.kv.keys("a") == []
            child = await s.child()
            assert await child.kv.get("b") == "11"
            await s.exec("import os; os._exit(1)")
            assert (await s.exec(KV + "kv.get('b')")).value == "11"

    asyncio.run(asyncio.wait_for(main(), 60))
