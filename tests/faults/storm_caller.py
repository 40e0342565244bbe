# SPDX-License-Identifier: Apache-2.0
"""Three callers of a storm, a thread each: `storm_caller.py NAME SEED SECONDS WITNESS`.

A line of JSON for each call when it begins and when it ends. What runs inside calls itself by the
call's name and opens the witness, a file of the host's: test_storm.py sees that from outside.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import hutch

_printing = threading.Lock()


def say(**told: Any) -> None:
    with _printing:
        print(json.dumps(told), flush=True)


def work(name: str, number: int) -> list[Any]:
    import ctypes
    import time

    ctypes.CDLL(None).prctl(15, name.encode())  # PR_SET_NAME
    open("/witness").close()
    time.sleep(number % 4 * 0.03)
    return [name, number * number]


PROGRAM = """\
import ctypes, sys, time
name, number = sys.argv[1], int(sys.argv[2])
ctypes.CDLL(None).prctl(15, name.encode())
open("/witness").close()
time.sleep(number % 4 * 0.03)
print(name, number * number)
"""


class Caller:
    def __init__(self, name: str, seed: str, until: float) -> None:
        self.name = name
        self.random = random.Random(seed + name)
        self.until = until
        self.count = 0

    def next(self) -> tuple[str, int]:
        """A name of at most 15 characters, as the kernel keeps of a process."""
        self.count += 1
        name = f"w-{self.name}-{self.count}"
        say(begun=name)
        return name, self.random.randrange(10_000)

    def end(self, name: str, right: bool, outcome: hutch.Outcome[Any], begun: float) -> None:
        say(
            ended=name,
            status=outcome.status,
            limit=outcome.limit,
            right=right,
            ran=outcome.may_have_run,
            safe=outcome.safe_to_retry,
            sec=round(time.monotonic() - begun, 2),
            why=str(outcome.exception() or "")[:160],
        )

    def one(self, call: Callable[[str, int], hutch.Outcome[Any]], expect: Any) -> None:
        name, number = self.next()
        begun = time.monotonic()
        try:
            outcome = call(name, number)
        except hutch.SandboxError as error:
            assert error.outcome is not None, error
            outcome = error.outcome
        self.end(name, outcome.ok and expect(outcome, name, number), outcome, begun)

    def run(self, way: Callable[[Caller], None]) -> None:
        try:
            while time.monotonic() < self.until:
                way(self)
        except BaseException as error:  # nothing but SandboxError may come out of a call
            say(broke=self.name, why=repr(error))
            raise


def main(name: str, seed: str, seconds: float, witness: str) -> None:
    options: dict[str, Any] = {
        "mounts": {"/witness": witness},
        "timeout_sec": 100,
        "queue_sec": 60,
    }
    function = hutch.sandbox(**options)(work)
    shared = hutch.sandbox(isolation="shared", **options)(work)

    def value(outcome: hutch.Outcome[Any], name: str, number: int) -> bool:
        return bool(outcome.value == [name, number * number])

    def printed(outcome: hutch.Outcome[Any], name: str, number: int) -> bool:
        return outcome.stdout == f"{name} {number * number}\n"

    def program(name: str, number: int) -> hutch.Outcome[Any]:
        return hutch.run(PROGRAM, args=[name, str(number)], **options)

    def functions(caller: Caller) -> None:
        caller.one(function.run, value)

    def programs(caller: Caller) -> None:
        caller.one(program, printed)

    def shared_cells(caller: Caller) -> None:
        caller.one(shared.run, value)

    def submitted(caller: Caller) -> None:
        items = [caller.next() for _ in range(4)]
        begun = time.monotonic()
        for (name, number), flight in [(item, function.submit(*item)) for item in items]:
            outcome = flight.outcome()
            caller.end(name, outcome.ok and value(outcome, name, number), outcome, begun)

    def mapped(caller: Caller) -> None:
        items = [caller.next() for _ in range(6)]
        begun = time.monotonic()
        chunk = caller.random.choice([1, 3])
        outcomes = function.starmap(items, concurrency=3, chunksize=chunk, on_error="outcome")
        for (name, number), outcome in zip(items, outcomes, strict=True):
            caller.end(name, outcome.ok and value(outcome, name, number), outcome, begun)

    until = time.monotonic() + seconds
    ways = [functions, programs, mapped] if name == "a" else [functions, shared_cells, submitted]
    threads = [
        threading.Thread(target=Caller(f"{name}{i}", seed, until).run, args=(way,))
        for i, way in enumerate(ways)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4])
