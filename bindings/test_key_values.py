# SPDX-License-Identifier: Apache-2.0
"""Keys and values of a session, and its history, by themselves: without a sandbox."""

from __future__ import annotations

import ast
import json
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch import KeyValueLimit, KeyValues, Outcome, SandboxStartupError, _key_values
from hutch._calls.history import History
from hutch._calls.kept import KeyValueRequests

WORKER = Path(__file__).parents[1] / "images" / "worker" / "key_values.py"


@pytest.fixture
def kv() -> KeyValues:
    return KeyValues()


def limit_of(kv: KeyValues, key: str, value: str | bytes) -> str:
    before = kv.items()
    with pytest.raises(KeyValueLimit) as failed:
        kv.set(key, value)
    assert kv.items() == before
    error = failed.value
    assert error.hint and f"{error.allowed:,}" in error.message
    assert error.used is not None and error.used > error.allowed
    assert pickle.loads(pickle.dumps(error)).limit == error.limit
    return error.limit


def test_text_and_bytes_come_back_as_they_were(kv: KeyValues) -> None:
    odd = ["", "a", "\0", "../..", "é\u202e\x1b[2J", "\ud800", "x" * 256]
    for i, key in enumerate(odd):
        kv.set(key, key)
        kv.set(f"bytes {i}", key.encode("utf-8", "surrogatepass"))
    for i, key in enumerate(odd):
        assert kv.get(key) == key
        assert kv.get(f"bytes {i}") == key.encode("utf-8", "surrogatepass")
    assert kv.get("absent") is None and kv.get("absent", 3) == 3


def test_keys_and_items_are_sorted_and_of_a_prefix(kv: KeyValues) -> None:
    for key in ("b", "a2", "a1"):
        kv.set(key, key.upper())
    assert kv.keys() == ["a1", "a2", "b"] and kv.keys("a") == ["a1", "a2"] and kv.keys("c") == []
    assert kv.items("a") == [("a1", "A1"), ("a2", "A2")]
    assert kv.delete("a1") is True and kv.delete("a1") is False and kv.keys() == ["a2", "b"]


@pytest.mark.parametrize("key", (b"a", 1, None, ["a"]))
def test_a_key_is_text(kv: KeyValues, key: Any) -> None:
    for use in (kv.get, kv.delete, lambda key: kv.set(key, "x")):
        with pytest.raises(TypeError, match="a key is text, not"):
            use(key)
    for use in (kv.keys, kv.items):
        with pytest.raises(TypeError, match="a prefix is text, not"):
            use(key)


@pytest.mark.parametrize("value", (1, None, bytearray(b"x"), ["a"], {"a": 1}))
def test_a_value_is_text_or_bytes(kv: KeyValues, value: Any) -> None:
    with pytest.raises(TypeError, match="a value is str or bytes, not"):
        kv.set("a", value)


def test_each_limit_is_an_error_of_its_own(kv: KeyValues) -> None:
    kv.set("k" * 256, "v" * (1 << 20))
    assert limit_of(kv, "k" * 257, "v") == "key_bytes"
    assert limit_of(kv, "é" * 129, "v") == "key_bytes"
    assert limit_of(kv, "k" * (1 << 20), "v") == "key_bytes"
    assert limit_of(kv, "a", "v" * ((1 << 20) + 1)) == "value_bytes"
    assert limit_of(kv, "a", "é" * ((1 << 19) + 1)) == "value_bytes"
    assert limit_of(kv, "k" * 256, b"v" * ((1 << 20) + 1)) == "value_bytes"
    kv.delete("k" * 256)
    for i in range(10_000):
        kv.set(str(i), "v")
    assert limit_of(kv, "one more", "v") == "keys"
    kv.set("7", "another value")
    kv.delete("0")
    kv.set("one more", "v")


def test_what_all_of_it_takes_is_limited_and_given_back(kv: KeyValues) -> None:
    value = bytes((1 << 20) - 2)
    for i in range(10, 74):
        kv.set(str(i), value)  # 64 MiB with their keys
    assert limit_of(kv, "more", "") == "total_bytes"
    assert limit_of(kv, "11", value + b"12") == "total_bytes"
    kv.set("11", value[:-4])
    kv.set("more", "")
    assert limit_of(kv, "n", "") == "total_bytes"
    for _ in range(3):
        kv.set("12", "")
        kv.set("12", value)
        kv.delete("13")
        kv.set("13", value)
    assert limit_of(kv, "n", "") == "total_bytes"


def test_threads_may_use_it_at_once(kv: KeyValues) -> None:
    def use(number: int) -> None:
        for i in range(300):
            kv.set(f"{number} {i % 50}", "x" * i)
            kv.keys()
            kv.delete(f"{number} {(i + 7) % 50}")

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    size = sum(len(key) + len(value) for key, value in kv.items())
    assert f"{len(kv.keys())} keys, {size:,} bytes" in repr(kv)


def test_a_child_of_the_process_has_none_of_it(kv: KeyValues) -> None:
    kv.set("a", "1")
    child = os.fork()
    if child == 0:
        try:
            kv.get("a")
        except SandboxStartupError as error:
            os._exit(7 if "parent of this process" in str(error) else 8)
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_the_code_inside_sends_nothing_larger_than_is_taken() -> None:
    found = {
        node.targets[0].id: ast.unparse(node.value)
        for node in ast.parse(WORKER.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert eval(found["MOST_KEY"]) == _key_values.MOST_KEY
    assert eval(found["MOST_VALUE"]) == _key_values.MOST_VALUE


# ---- what a cell asks for


class Requests(KeyValueRequests):
    def __init__(self, kv: KeyValues) -> None:
        self.now = 100.0
        super().__init__(kv, lambda: self.now)


def test_a_cell_uses_the_same_keys(kv: KeyValues) -> None:
    ask = Requests(kv).answer
    assert ask(["set", "a", b"1"]) == ("ok", ("ok", None)) and kv.get("a") == b"1"
    assert ask(["get", "a"]) == ("ok", ("ok", b"1"))
    assert ask(["keys", ""]) == ("ok", ("ok", ["a"]))
    assert ask(["items", "", None]) == ("ok", ("ok", [("a", b"1")]))
    assert ask(["items", "", "a"]) == ("ok", ("ok", []))
    assert ask(["delete", "a"]) == ("ok", ("ok", True)) and kv.keys() == []
    assert ask(["set", "k" * 300, ""])[1][:2] == ("limit", "key_bytes")


WRONG: list[list[Any]] = [[], ["get"], ["get", 1], ["get", "a", "b"], ["set", "a"], [["get"], "a"],
         ["set", "a", 1], ["set", "a", None], ["items", ""], ["items", "", 3], ["part", "", "", 1],
         ["__init__"], [None], ["keys", b""], ["set", {"a": 1}, "x"], ["repr"]]  # fmt: skip


@pytest.mark.parametrize("content", WRONG, ids=repr)
def test_what_is_no_request_is_an_error_inside(kv: KeyValues, content: list[Any]) -> None:
    kind, name, text = Requests(kv).answer(content)
    assert (kind, name) == ("error", "TypeError") and text and kv.keys() == []


def test_items_come_in_parts_that_fit_into_an_answer(kv: KeyValues) -> None:
    for i in range(5):
        kv.set(f"large {i}", bytes(1 << 20))
    for i in range(5000):
        kv.set(f"small {i}", "x" * 300)
    ask, found, after = Requests(kv).answer, [], None
    while part := ask(["items", "", after])[1][1]:
        assert len(pickle.dumps(part, 5)) < 3 << 20
        found += part
        after = part[-1][0]
    assert found == kv.items()


def test_all_keys_fit_into_an_answer(kv: KeyValues) -> None:
    for i in range(10_000):
        kv.set(f"{i:0256}", "")
    assert len(pickle.dumps(Requests(kv).answer(["keys", ""]), 5)) < 4 << 20


def test_requests_are_limited_to_a_rate_and_what_waits_may_go_on(kv: KeyValues) -> None:
    requests = Requests(kv)

    def served(count: int) -> int:
        return sum(requests.answer(["get", "a"])[1][0] == "ok" for _ in range(count))

    assert served(100_000) == 1000
    assert requests.answer(["set", "a", ""])[1][:2] == ("limit", "rate")
    requests.now += 0.125
    assert served(100_000) == 62
    requests.now += 3600
    assert served(100_000) == 1000
    assert kv.keys() == []
    kv.set("a", "of the host, for which there is no such limit")


# ---- history


def test_entries_are_in_the_order_in_which_they_began() -> None:
    history = History()
    first = history.begin("exec", b"1 + 1")
    tool = history.begin("tool", b"price('apple')", 7)
    assert history.begin("get", b"") is None
    inner = history.begin("exec", b"x")
    history.finish(inner, "raised", "NameError")
    assert [(e.id, e.within, e.status, e.end is None) for e in history.entries(100)] == [
        (1, None, "running", True), (2, 1, "running", True), (3, 2, "raised", False)]  # fmt: skip
    history.finish(tool, "returned", result_size=3)
    history.finish(tool, "raised", "of the second time")
    outcome: Outcome[Any] = Outcome("returned", 2, stdout_size=2, call_id="c")
    history.end(first, outcome, 5)
    history.finish(history.begin("exec", b"next"), "returned")
    entries = history.entries(100)
    assert [e.status for e in entries] == ["returned", "returned", "raised", "returned"]
    assert entries[0].end is not None and (entries[0].call_id, entries[0].result_size) == ("c", 5)
    assert entries[2].error == "NameError" and entries[1].result_size == 3
    assert entries[3].within is None
    assert json.loads(json.dumps(entries[0].to_dict()))["source"] == "1 + 1"
    assert history.entries(2) == entries[2:] and history.entries(0) == []


@pytest.mark.parametrize("limit", (-1, "3", 1.5, None, True))
def test_a_limit_is_a_number_of_entries(limit: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="limit="):
        History().entries(limit)


def test_what_a_cell_starts_pushes_out_nothing_of_its_callers() -> None:
    history = History()
    own = history.begin("exec", b"the callers")
    for i in range(100_000):
        history.finish(history.begin("tool", b"x" * 100_000, i), "returned")
    entries = history.entries(10**9)
    assert len(entries) == 1001 and entries[0].source == "the callers"
    assert [e.source_size for e in entries[1:]] == list(range(99_000, 100_000))
    assert sum(len(e.source) for e in entries) <= 1001 * (16 << 10)
    history.finish(own, "returned")
    for _ in range(3000):
        history.finish(history.begin("exec", b""), "returned")
    assert len(history.entries(10**9)) == 2000


def test_a_source_is_cut_and_shown_harmlessly() -> None:
    history = History()
    hostile = "\x1b[2J\u202e\n" + "é" * 20_000
    history.finish(history.begin("exec", hostile.encode()), "raised", "E\x1b" * 10_000)
    entry = history.entries(1)[0]
    assert len(entry.source.encode()) <= 16_390 and entry.source.startswith("\x1b[2J")
    assert entry.source_size == len(hostile.encode()) and len(entry.error) == 200
    for shown in (repr(entry), str(entry)):
        assert "\x1b" not in shown and "\u202e" not in shown and "\n" not in shown
        assert len(shown) < 1500


def test_a_call_of_a_tool_is_shown_whatever_its_arguments_are() -> None:
    history = History()
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    given: list[tuple[Any, Any, Any]] = [
        ("price", ["apple"], {"count": 3}),
        (None, None, None),
        ("x" * 10_000, [b"y" * 10_000_000, 10**100_000, deep], {"k" * 9999: "z" * 10**7}),
        ("many", list(range(1_000_000)), {str(i): i for i in range(100_000)}),
        ("\ud800\x1b", ["\ud800\x1b"], {"\ud800": 1}),
    ]
    for name, args, kwargs in given:
        with history.of_tool(name, args, kwargs, 1) as finish:
            finish("returned")
    shown = [e.source for e in history.entries(100)]
    assert shown[0] == "price('apple', count=3)"
    assert all(len(text) <= 16 << 10 for text in shown)


def test_a_tool_that_ends_the_code_is_noted() -> None:
    history = History()
    with pytest.raises(hutch.StopExec), history.of_tool("finish", [], {}, 1):
        raise hutch.StopExec
    entry = history.entries(1)[0]
    assert (entry.status, entry.error, entry.source) == ("raised", "StopExec", "finish()")
