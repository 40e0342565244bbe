# SPDX-License-Identifier: Apache-2.0
"""State: no call sees what another one changed."""

from __future__ import annotations

import pytest

from hutch import Pool, sandbox

counter = 0
table: dict[str, int] = {}


class Settings:
    mode = "plain"


@sandbox
def change_everything() -> list[object]:
    global counter
    import decimal
    import locale
    import logging
    import os
    import random
    import sys
    import time

    counter += 1
    table["seen"] = table.get("seen", 0) + 1
    found: list[object] = [counter, len(table), Settings.mode]
    found += [
        decimal.getcontext().prec,
        os.environ.get("TZ", ""),
        len(logging.getLogger().handlers),
        os.getcwd(),
    ]
    found += [
        hasattr(os, "changed"),
        "intruder" in sys.modules,
        sys.getrecursionlimit(),
        os.umask(0o22),
    ]
    Settings.mode = "changed"
    decimal.getcontext().prec = 3
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()
    logging.basicConfig(level=0)
    locale.setlocale(locale.LC_ALL, "C")
    os.chdir("/tmp")
    os.umask(0)
    os.changed = True  # type: ignore[attr-defined]
    sys.modules["intruder"] = sys
    sys.setrecursionlimit(5000)
    random.seed(1)
    return found


@pytest.mark.wall("fresh")
def test_a_call_begins_as_every_other_did() -> None:
    first = change_everything()
    assert first[:3] == [1, 1, "plain"]
    assert [change_everything() for _ in range(8)] == [first] * 8
    assert (counter, table, Settings.mode) == (0, {}, "plain")


def test_random_numbers_differ_from_call_to_call() -> None:
    @sandbox
    def draw() -> list[object]:
        import os
        import random
        import secrets
        import uuid

        return [random.random(), os.urandom(8), secrets.token_hex(8), str(uuid.uuid4())]

    drawn = [draw() for _ in range(10)]
    for place in range(4):
        assert len({str(one[place]) for one in drawn}) == 10


def test_random_numbers_of_numpy_and_openssl_differ_from_call_to_call() -> None:
    pytest.importorskip("numpy")

    @sandbox(dependencies=["numpy"], preload=["numpy.random", "ssl"])
    def draw() -> list[object]:
        import sys

        loaded = sorted({"numpy.random", "ssl"} & sys.modules.keys())  # before this call began
        import os
        import ssl

        import numpy as np

        return [
            float(np.random.rand()),
            float(np.random.default_rng().random()),
            ssl.RAND_bytes(8),
            os.getpid(),
            loaded,
        ]

    drawn = [draw() for _ in range(10)]
    assert all(one[3:] == drawn[0][3:] for one in drawn), "no pid tells one from the other"
    assert drawn[0][4] == ["numpy.random", "ssl"]
    for place in range(3):
        assert len({str(one[place]) for one in drawn}) == 10


@pytest.mark.wall("fresh")
def test_modules_of_the_library_can_be_broken_for_oneself_only() -> None:
    @sandbox
    def break_json() -> str:
        import json

        json.dumps = lambda *_: "broken"
        return json.dumps({})

    @sandbox
    def use_json() -> str:
        import json

        return json.dumps({})

    assert break_json() == "broken"
    assert [use_json() for _ in range(8)] == ["{}"] * 8


@pytest.mark.parametrize("setting", ["memory_mb", "env", "pids", "disk_mb"])
def test_calls_of_different_settings_never_share_a_cell(setting: str) -> None:
    small: dict[str, object] = {"memory_mb": 200, "env": {"WHO": "a"}, "pids": 10, "disk_mb": 8}
    large: dict[str, object] = {"memory_mb": 900, "env": {"WHO": "b"}, "pids": 40, "disk_mb": 32}

    def limits() -> dict[str, object]:
        import os
        import resource

        scratch = os.statvfs(".")
        return {
            "memory_mb": resource.getrlimit(resource.RLIMIT_DATA)[1],
            "env": os.environ.get("WHO"),
            "pids": resource.getrlimit(resource.RLIMIT_NPROC)[1],
            "disk_mb": scratch.f_blocks * scratch.f_frsize,
        }

    one = sandbox(**{setting: small[setting]})(limits)  # type: ignore[call-overload]
    two = sandbox(**{setting: large[setting]})(limits)  # type: ignore[call-overload]
    answers = [[function()[setting] for _ in range(3)] for function in (one, two, one, two)]
    assert answers[0] == answers[2]
    assert answers[1] == answers[3]
    assert not set(map(str, answers[0])) & set(map(str, answers[1]))


@pytest.mark.wall("fresh")
def test_every_call_has_a_process_of_its_own() -> None:
    @sandbox
    def who() -> list[object]:
        import os

        spaces = [
            os.readlink(f"/proc/self/ns/{kind}") for kind in ("user", "pid", "mnt", "ipc", "uts")
        ]
        return [os.getpid(), spaces, open("/proc/self/stat").read().rpartition(")")[2].split()[19]]

    seen = [who() for _ in range(10)]
    births = {str(one[2]) + str(one[1]) for one in seen}
    assert len(births) == 10


def page_of_output(write: bytes = b"", ends: bool = False) -> bytes:
    """Runs in a cell: what it finds in the page that lines are gathered in, before it writes."""
    import ctypes
    import os

    with open("/proc/self/maps") as file:
        (line,) = [line for line in file if " rw-s " in line and "/dev/zero" in line]
    begin, end = (int(place, 16) for place in line.split()[0].split("-"))
    page = (ctypes.c_char * (end - begin)).from_address(begin)
    found = bytes(page)
    page[: len(write)] = write
    if ends:
        os._exit(3)
    return found


ONE = Pool(max_cells=1)  # one slot


@pytest.mark.wall("page")
def test_what_a_call_left_to_be_printed_is_in_no_later_cell() -> None:
    of_one_slot = sandbox(page_of_output, pool=ONE, labels={"test": "page"})
    nothing = bytes(4096)
    mark = bytes(4) + b"M" * 4092
    assert [of_one_slot(mark) for _ in range(4)] == [nothing] * 4


# It is as large as the code says, and PID 1 of the cell writes it once the code is gone.
@pytest.mark.parametrize("size", [4092, 4093, 1 << 20, (1 << 32) - 1])
def test_no_more_than_a_page_is_printed_for_code_that_is_gone(size: int) -> None:
    outcome = sandbox(page_of_output).run(size.to_bytes(4, "little") + b"x" * 4092, True)
    assert outcome.stdout == ("x" * 4092 if size == 4092 else "")
    assert (outcome.status, outcome.exit_code) == ("died", 3)
    assert not any(sandbox(page_of_output)())
