# SPDX-License-Identifier: Apache-2.0
"""Thieves: after every kind of call, hostile ones look through all that is theirs for its bytes.

A marker is two random halves with a colon between them. A thief is given the halves apart, so that
what it was given is no find, and puts no marker together itself. It runs as a program and as a
function, in the same process as the call and in another one, with the same options: the same pool.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import hutch
from hutch import sandbox

THIEF = '''
def steal(pairs):
    """(number of the pair, where its marker is) for each that is found."""
    import gc
    import os
    import sys

    pairs = [(first.encode(), second.encode()) for first, second in pairs]
    found = set()

    def look(where, data):
        for number, (first, second) in enumerate(pairs):
            at = data.find(first)
            while at >= 0:
                end = at + len(first)
                if data[end : end + 1] == b":" and data[end + 1 : end + 1 + len(second)] == second:
                    found.add((number, where))
                at = data.find(first, end)

    def look_at(where, value):
        if type(value) is str:
            value = value.encode("utf-8", "replace")
        if type(value) in (bytes, bytearray):
            look(where, value)

    searched = 0
    try:
        maps, memory = open("/proc/self/maps"), open("/proc/self/mem", "rb", buffering=0)
    except OSError:
        maps = ()
    for line in maps:
        span, mode = line.split()[:2]
        if mode[0] != "r" or "[v" in line:
            continue
        begin, end = (int(part, 16) for part in span.split("-"))
        for at in range(begin, end, 1 << 24):
            try:
                memory.seek(at)
                data = memory.read(min(end - at, (1 << 24) + 256))
            except (OSError, ValueError, OverflowError):
                break
            searched += len(data)
            look("memory", data)
    for holder in gc.get_objects():
        for value in gc.get_referents(holder):
            look_at("objects", value)
    for frame in sys._current_frames().values():
        while frame is not None:
            for value in list(frame.f_locals.values()):
                look_at("frames", value)
            frame = frame.f_back
    for fd in range(64):
        try:
            look("descriptors", os.pread(fd, 1 << 20, 0))
        except OSError:
            pass
    for top in ("/tmp", "/work", "/dev/shm", "/var/tmp", os.getcwd()):
        for directory, _, names in os.walk(top):
            for name in names:
                look("scratch", name.encode())
                try:
                    with open(os.path.join(directory, name), "rb") as file:
                        look("scratch", file.read(1 << 20))
                except OSError:
                    pass
    return [sorted(found), searched]
'''
# Its search is in words that no honest program has, so that two texts are never the same.
PROGRAM = (
    THIEF + "import json, sys\nprint(json.dumps(steal(json.loads(sys.stdin.read()))), end='')\n"
)
OTHER_CLIENT = """
import json, sys
import hutch
text, pairs, times, options, warm = json.load(sys.stdin)
options["pool"] = hutch.Pool(warm=warm)
told = [hutch.run(text, stdin=pairs, **options) for _ in range(times)]
print(json.dumps([[one.status, one.stdout] for one in told]))
"""
Pair = tuple[str, str]


class Markers:
    def __init__(self) -> None:
        self.pairs: list[Pair] = []

    def __call__(self) -> str:
        pair = os.urandom(12).hex(), os.urandom(12).hex()
        self.pairs.append(pair)
        return ":".join(pair)


class Thieves:
    """Of one set of options."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        space: dict[str, Any] = {"__name__": __name__}
        exec(THIEF, space)
        self.function = sandbox(**options)(space["steal"])

    def by_program(self, pairs: list[Pair]) -> Any:
        options = {k: v for k, v in self.options.items() if k != "setup"}
        outcome = hutch.run(PROGRAM, stdin=json.dumps(pairs), **options)
        assert outcome.status == "returned", outcome
        return json.loads(outcome.stdout)

    def by_function(self, pairs: list[Pair]) -> Any:
        return self.function(pairs)

    def in_another_client(self, pairs: list[Pair], times: int) -> list[Any]:
        """Programs only, with no options that are not data but the pool's."""
        options = {**self.options}
        pool = options.pop("pool", hutch.Pool())
        done = subprocess.run(
            [sys.executable, "-c", OTHER_CLIENT],
            input=json.dumps([PROGRAM, json.dumps(pairs), times, options, pool.warm]),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert all(status == "returned" for status, _ in told), told
        return [json.loads(text) for _, text in told]


def find_nothing(
    call: Callable[[Markers], None], thieves: Thieves, rounds: int = 3, others: int = 4
) -> None:
    """`call`: makes calls with fresh markers. Two thieves after each round of them, and then some
    in another process."""
    markers = Markers()
    for _ in range(rounds):
        call(markers)
        for steal in (thieves.by_program, thieves.by_function):
            found, _searched = steal(markers.pairs)
            assert found == [], "a call's bytes are in another one's cell"
    if others:
        call(markers)
        for found, _searched in thieves.in_another_client(markers.pairs, others):
            assert found == [], "a call's bytes are in the cell of another process"


# ---- each kind of call: in a pool that no other file fills; what is called again, so many times as
# `times` says, is given to cells ahead


def functions(options: dict[str, Any], times: int = 4) -> Callable[[Markers], None]:
    def call(markers: Markers) -> None:
        captured = {"key": markers()}

        @sandbox(**options)
        def honest(x: str, more: str = "") -> int:
            return len(captured["key"]) + len(x) + len(more)

        for _ in range(times):
            assert honest(markers(), more=markers()) == 3 * 49
        with pytest.raises(KeyError):
            fails = sandbox(**options)(lambda x: captured[x])
            fails(markers())

    return call


def programs(options: dict[str, Any]) -> Callable[[Markers], None]:
    def call(markers: Markers) -> None:
        text = f"import sys\nx = {markers()!r}\nprint(len(sys.argv), len(sys.stdin.read()))"
        for _ in range(4):
            files = {"data": markers()}
            told = hutch.run(text, stdin=markers(), args=[markers()], files=files, **options)
            assert told.stdout == "2 49\n", told
        program = hutch.Program(text, **options)
        assert [one.stdout for one in program.map([markers(), markers()])] == ["1 49\n"] * 2
        assert program.submit(stdin=markers()).result().stdout == "1 49\n"
        for _ in range(4):  # given nothing
            assert hutch.run(text, **options).stdout == "1 0\n"

    return call


def maps(options: dict[str, Any]) -> Callable[[Markers], None]:
    def call(markers: Markers) -> None:
        captured = markers()
        honest = sandbox(**options)(lambda x: len(x) + len(captured))
        for size in (1, 2):
            told = list(honest.map([markers() for _ in range(4)], chunksize=size))
            assert told == [98] * 4

    return call


def futures(options: dict[str, Any]) -> Callable[[Markers], None]:
    def call(markers: Markers) -> None:
        captured = markers()
        honest = sandbox(**options)(lambda x: len(x) + len(captured))
        assert [honest.submit(markers()).result() for _ in range(3)] == [98] * 3

        async def several() -> list[int]:
            return list(await asyncio.gather(*(honest.aio(markers()) for _ in range(3))))

        assert asyncio.run(several()) == [98] * 3

    return call


def texts(options: dict[str, Any]) -> Callable[[Markers], None]:
    def call(markers: Markers) -> None:
        text = f"kept = {markers()!r}\ndef honest(x):\n    return len(x) + len(kept)\n"
        honest = hutch.function(text, "honest", **options)
        assert [honest(markers()) for _ in range(4)] == [98] * 4

    return call


KINDS = {
    "functions": functions,
    "programs": programs,
    "maps": maps,
    "futures": futures,
    "texts": texts,
}


# Programs and texts have a file of their own, which another wall keeps apart.
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if kind in ("programs", "texts") else pytest.mark.wall("fresh"))
        for kind in KINDS
    ],
)
def test_no_call_finds_anything_of_an_earlier_one(kind: str) -> None:
    options = {"labels": {"thief": "any"}, "timeout_sec": 60}
    find_nothing(KINDS[kind](options), Thieves(**options))


@pytest.mark.wall("fresh")
def test_no_call_finds_anything_of_one_that_used_the_tools_of_setup() -> None:
    def tools() -> None:
        import builtins

        kept: list[str] = []
        builtins.tool = lambda x: kept.append(x) or len(kept)  # type: ignore[attr-defined]

    options = {"labels": {"thief": "setup"}, "setup": tools, "timeout_sec": 60}
    use = sandbox(**options)(lambda x: tool(x))  # type: ignore[name-defined]  # noqa: F821
    thieves = Thieves(**options)

    def call(markers: Markers) -> None:
        assert [use(markers()) for _ in range(4)] == [1] * 4

    markers = Markers()
    for _ in range(3):
        call(markers)
        found, _searched = thieves.by_function(markers.pairs)
        assert found == []


@pytest.mark.parametrize("rung", ["container", "bare", "gvisor"], indirect=True)
def test_no_call_with_a_container_of_its_own_finds_anything(rung: str) -> None:
    """Also where the container of a call was given ahead, with the function in it."""
    isolation = "container" if rung == "bare" else rung
    options = {"isolation": isolation, "labels": {"thief": rung}, "timeout_sec": 60}
    options["pool"] = hutch.Pool(warm=1)

    markers = Markers()
    functions(options, 2)(markers)
    text = f"x = {markers()!r}\nprint(len(input()))"
    assert hutch.run(text, stdin=markers(), files={"data": markers()}, **options).stdout == "49\n"
    thieves = Thieves(**options)
    found = [thieves.by_function(markers.pairs), thieves.by_program(markers.pairs)]
    if rung != "bare":  # which is one of this process alone
        found += thieves.in_another_client(markers.pairs, 1)
    assert [places for places, _searched in found if places] == []


def test_no_fresh_call_finds_anything_of_a_shared_one_and_no_other_process_does() -> None:
    options = {"labels": {"thief": "any"}, "timeout_sec": 60}
    shared = {**options, "isolation": "shared"}
    find_nothing(functions(shared), Thieves(**options))
    markers = Markers()
    functions(shared)(markers)
    for found, _searched in Thieves(**shared).in_another_client(markers.pairs, 4):
        assert found == []


def test_a_thief_finds_what_is_its_own() -> None:
    """Else none of the above would show anything."""
    markers = Markers()
    text = markers()
    options = {"labels": {"thief": "any"}, "timeout_sec": 60}

    @sandbox(**options)
    def own(text: str, pairs: list[Pair]) -> Any:
        with open("file", "w") as file:
            file.write(text)
        space: dict[str, Any] = {}
        exec(THIEF, space)
        return space["steal"](pairs)

    found, searched = own(text, markers.pairs)
    assert {tuple(one) for one in found} >= {(0, "memory"), (0, "objects"), (0, "scratch")}, found
    assert searched > 1 << 20
    told = hutch.run(f"text = {text!r}\n" + PROGRAM, stdin=json.dumps(markers.pairs), **options)
    assert [0, "memory"] in json.loads(told.stdout)[0]


def test_no_program_answers_for_another() -> None:
    """What was given ahead is found by all of it, and by no key that an input could bring about."""
    wrong, right = "print('wrong')", "print('right')"
    for number in range(6):
        for _ in range(2):
            assert hutch.run(wrong, stdin=os.urandom(16)).stdout == "wrong\n"
        assert hutch.run(right).stdout == "right\n", number
        assert hutch.run(right, stdin=os.urandom(16), args=["print('wrong')"]).stdout == "right\n"


def nested(levels: int) -> str:
    """Half a kilobyte of text whose code doubles with each level."""
    lines = [" " * level + line for level in range(levels) for line in ("try:x", "finally:")]
    lines.append(" " * levels + "x")
    return "x = 1\ndef never():\n" + "".join(f" {line}\n" for line in lines) + "print('done')\n"


def test_text_that_takes_long_to_compile_makes_nobody_else_late() -> None:
    slow = nested(16)
    assert len(slow) < 620
    options = {"labels": {"thief": "any"}, "timeout_sec": 60}
    for _ in range(3):  # from the second on it is given to a next cell ahead
        assert hutch.run(slow, **options).stdout == "done\n"
        # The time limit is no part of what a pool is: these are of the same one.
        quick = [hutch.run("print(1)", **{**options, "timeout_sec": 1.5}) for _ in range(6)]
        assert [one.status for one in quick] == ["returned"] * 6
