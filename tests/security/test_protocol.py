# SPDX-License-Identifier: Apache-2.0
"""The worker's protocol: whatever a cell sends, or does not, is an answer or a clear error."""

from __future__ import annotations

import contextlib
import textwrap
import time
from typing import Any

import pytest
from support import grows_by_less_than

import hutch
from hutch import sandbox
from hutch._core import FRAME_VERSION as VERSION
from hutch.evals.code_eval import compute_code_eval


@sandbox(timeout_sec=10)
def leave(how: str) -> None:
    import os
    import sys

    if how == "_exit 0":
        os._exit(0)
    if how == "_exit 3":
        os._exit(3)
    if how == "sys.exit":
        sys.exit("bye")
    if how == "exec":
        os.execv("/bin/true", ["true"])
    if how == "exec sleep":
        os.execv("/bin/sleep", ["sleep", "0.1"])


@pytest.mark.parametrize("how", ["_exit 0", "_exit 3", "exec", "exec sleep"])
def test_leaving_without_an_answer_is_a_death(how: str, next_call_works: None) -> None:
    outcome = leave.run(how)
    assert outcome.status == "died"
    assert outcome.exit_code == (3 if how == "_exit 3" else 0)
    with pytest.raises(hutch.SandboxDied):
        outcome.unwrap()


def test_sys_exit_in_a_function_is_reported(next_call_works: None) -> None:
    assert leave.run("sys.exit").status in ("raised", "died")


@sandbox(timeout_sec=10)
def close_all(then: str) -> int:
    import os

    if then == "dup":
        null = os.open("/dev/null", os.O_RDWR)
        for fd in range(1024):
            try:
                os.dup2(null, fd)
            except OSError:
                pass
    else:
        os.closerange(0, 1024)
    return 5


@pytest.mark.parametrize("then", ["close", "dup"])
def test_closing_every_descriptor_is_a_clear_end(then: str, next_call_works: None) -> None:
    outcome = close_all.run(then)
    assert outcome.status in ("died", "fault", "limit")
    assert outcome.status != "limit" or outcome.limit == "time"


# With a budget of CPU time a cell serves a call in Python, where the call's id can be found.
LONG_WAY = {"cpu_sec": 60}


def frame_attack(how: str) -> Any:
    """Speaks the protocol itself: finds the worker and the call's id by walking up the stack."""
    import socket
    import struct
    import sys
    import time

    frame: Any = sys._getframe()
    while frame is not None and "call_id" not in frame.f_locals:
        frame = frame.f_back
    worker, call = frame.f_locals["self"], frame.f_locals["call_id"]
    raw = socket.socket(fileno=worker.fd)
    usage = b"\0" * 56

    def head(
        kind: int, b: int, c: int, number: int = call, magic: int = 0x4348, version: int = VERSION
    ) -> bytes:
        return struct.pack("<HBBIQQQ", magic, version, kind, 0, number, b, c)

    result, need, part, memfd_result = 3, 6, 11, 1
    pickled = b"\x80\x05\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R."
    texts = {
        "pickle": [head(result, len(pickled), len(pickled)) + usage + pickled],
        "marshal": [head(result, 5, 5) + usage + b"\xe3\0\0\0\0"],
        "json": [head(result, 2, 2) + usage + b"{}"],
        "unknown version": [head(result, 3, 3) + usage + b"\xc1\x02\xc0"],
        "empty": [b""],
        "short header": [b"\x48\x43\x01"],
        "bad magic": [head(result, 1, 1, magic=0x5555) + usage + b"\xc0"],
        "bad frame version": [head(result, 1, 1, version=9) + usage + b"\xc0"],
        "unknown kind": [head(200, 0, 0)],
        "agent's kind": [head(64, 0, 0) + b"token"],
        "size 0": [head(result, 0, 0) + usage],
        "size 2^63": [head(result, 1 << 63, 1 << 63) + usage],
        "size -1": [head(result, (1 << 64) - 1, (1 << 64) - 1) + usage + b"\xc1\x01\xc0"],
        "body larger": [head(result, 100, 3) + usage + b"\xc1\x01\xc0"],
        "trailing": [head(result, 3, 3) + usage + b"\xc1\x01\xc0" + b"more"],
        "no usage": [head(result, 3, 3) + b"\xc1\x01\xc0"],
        "other call": [head(result, 3, 3, number=call ^ 1) + usage + b"\xc1\x01\xc0"],
        "need 2^63": [head(need, 1 << 63, 0)],
        "need -1": [head(need, (1 << 64) - 1, 0)],
        "need 0": [head(need, 0, 0)],
        "memfd never given": [
            struct.pack("<HBBIQQQ", 0x4348, VERSION, result, memfd_result, call, 3, 3) + usage
        ],
        "part of 2^63": [head(part, 0, 1 << 63) + b"part"],
        "empty part": [head(part, 0, 4)],
        "more parts than said": [head(part, 0, 3) + b"\xc1\x01", head(part, 0, 3) + b"\xc0\xc0"],
        "parts of two results": [head(part, 0, 3) + b"\xc1", head(part, 0, 4) + b"\x01"],
        "garbage": [b"\xff" * 5000],
    }
    if how == "head, then body":
        raw.send(head(result, 3, 3))
        time.sleep(1)
        raw.send(usage + b"\xc1\x01\xc0")
    elif how == "two replies":
        # A second answer of the same call is never anybody's answer.
        raw.send(head(result, 3, 3) + usage + b"\xc1\x01\x01")
        raw.send(head(result, 3, 3) + usage + b"\xc1\x01\x02")
    elif how == "flood":
        raw.setblocking(False)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            try:
                raw.send(head(2, 0, 0))
            except BlockingIOError:
                time.sleep(0.001)
            except OSError:
                break
    else:
        for text in texts[how]:
            try:
                raw.send(text)
            except OSError:
                pass
    raw.detach()
    time.sleep(0.2)
    return "went on"


attack = sandbox(timeout_sec=3, **LONG_WAY)(frame_attack)
FORGERIES = [
    "pickle", "marshal", "json", "unknown version", "empty", "short header", "bad magic",
    "bad frame version", "unknown kind", "agent's kind", "size 0", "size 2^63", "size -1",
    "body larger", "trailing", "no usage", "other call", "memfd never given", "garbage",
    "part of 2^63", "empty part", "more parts than said", "parts of two results",
    "head, then body",
]  # fmt: skip


@pytest.mark.parametrize("how", FORGERIES)
def test_a_forged_frame_is_the_cells_own_end(how: str, next_call_works: None) -> None:
    outcome = attack.run(how)
    assert outcome.status in ("died", "raised"), outcome
    with pytest.raises((hutch.SandboxDied, hutch.SerializationError)):
        outcome.unwrap()


@sandbox
def nap() -> str:
    import time

    time.sleep(1)
    return "slept"


@pytest.mark.parametrize("how", ["bad magic", "other call", "body larger"])
def test_a_forger_disturbs_no_other_call(how: str) -> None:
    other = nap.submit()
    assert attack.run(how).status == "died"
    assert other.result() == "slept"


@pytest.mark.parametrize("how", ["need 2^63", "need -1", "need 0"])
def test_a_claim_of_an_absurd_size_is_refused(how: str, next_call_works: None) -> None:
    with grows_by_less_than(64), contextlib.suppress(hutch.SandboxError):
        assert attack(how) == "went on"  # it is refused, and may answer with something smaller


@sandbox(timeout_sec=4, **LONG_WAY)
def start_late(forged: bool) -> None:
    """Says just before its time is over that it was loaded only now, and goes on."""
    import socket
    import struct
    import sys
    import time

    frame: Any = sys._getframe()
    while frame is not None and "call_id" not in frame.f_locals:
        frame = frame.f_back
    worker, call = frame.f_locals["self"], frame.f_locals["call_id"]
    raw = socket.socket(fileno=worker.fd)
    end = time.monotonic() + 3.6
    while time.monotonic() < end:
        time.sleep(0.1)
    if forged:
        raw.send(struct.pack("<HBBIQQQ", 0x4348, VERSION, 2, 0, call, 0, 0))
    raw.detach()
    time.sleep(60)


def test_no_call_has_its_time_twice(next_call_works: None) -> None:
    outcomes = [call.outcome() for call in [start_late.submit(forged) for forged in (True, False)]]
    for outcome in outcomes:
        assert (outcome.status, outcome.limit) == ("limit", "time"), outcome
    forged, honest = (outcome.usage.wall_sec for outcome in outcomes)
    assert 3.9 < forged < honest + 2, (forged, honest)  # + 3.6 with the time twice
    assert honest < 7.5  # 8 with the time twice


CLAIMS = """
import _hutch_cell
_hutch_cell.hit_limit({limit})
raise ValueError("of its own")
"""


@pytest.mark.parametrize("limit", [1, 2, 6, 4_000_000_000])
def test_code_cannot_claim_a_limit_that_is_measured_outside(limit: int) -> None:
    """One of time would blame its caller's limits, and have callers run it again with more."""
    claims = CLAIMS.format(limit=limit)
    claim = hutch.function(f"def claim():\n{textwrap.indent(claims, '    ')}", "claim")
    found = [hutch.run(claims), claim.run(), claim.options(isolation="shared").run()]
    with hutch.Session(memory_mb=128) as s:
        found.append(s.exec(claims))
        assert s.exec("1 + 1").value == 2
    for outcome in found:
        assert (outcome.status, outcome.limit) == ("died", None)
        assert outcome.usage.enforcement != "claimed"
    _, results = compute_code_eval([[claims]], ["pass"], k=[1])
    assert str(results[0][0][1]["result"]).startswith("failed")


@pytest.mark.parametrize("limit", [3, 4, 5])
def test_a_limit_that_code_claims_is_marked_so(limit: int) -> None:
    with hutch.Session(memory_mb=128) as s:
        for outcome in (hutch.run(CLAIMS.format(limit=limit)), s.exec(CLAIMS.format(limit=limit))):
            assert outcome.limit in ("memory", "pids", "disk")
            assert outcome.usage.enforcement == "claimed"
            assert outcome.error is not None


def test_a_result_that_code_claims_to_be_too_large_is_marked_so() -> None:
    outcome = hutch.run("print(1)", result_mb=1)
    assert outcome.ok and outcome.usage.enforcement != "claimed"
    large = hutch.function("def large(): return bytes(2 << 20)", "large", result_mb=1).run()
    assert (large.limit, large.usage.enforcement) == ("result", "claimed")


def test_limits_that_an_exception_is_and_those_of_time_are_reported() -> None:
    with hutch.Session(memory_mb=128) as s:
        said = s.exec("bytearray(1 << 40)")
        assert (said.limit, said.usage.enforcement) == ("memory", "claimed")
        seen = [
            s.exec("held = [bytes(range(256)) * 4096 for _ in range(1000)]"),
            s.exec("import time; time.sleep(60)", timeout_sec=0.3),
            s.exec("while True: pass", cpu_sec=0.3),
        ]
    assert [outcome.limit for outcome in seen] == ["memory", "time", "cpu_time"]
    assert {outcome.usage.enforcement for outcome in seen} <= {"cgroup", "watchdog"}


def test_a_second_reply_is_nobodys_answer(next_call_works: None) -> None:
    for _ in range(5):
        assert attack("two replies") == 1


def memory_attack(how: str) -> Any:
    """Answers in memory of the host's, as a large result does, and goes on to work on that."""
    import array
    import fcntl
    import mmap
    import os
    import socket
    import struct
    import sys
    import time

    frame: Any = sys._getframe()
    while frame is not None and "call_id" not in frame.f_locals:
        frame = frame.f_back
    worker, call = frame.f_locals["self"], frame.f_locals["call_id"]
    raw = socket.socket(fileno=worker.fd)
    size = 4 << 20
    raw.send(struct.pack("<HBBIQQQ", 0x4348, VERSION, 6, 0, call, size, 0))
    _, more, _, _ = raw.recvmsg(4096, socket.CMSG_SPACE(64))
    memfd = array.array("i", more[0][2])[0]
    memory = mmap.mmap(memfd, size)
    begin = b"\xc1\x01\xc6" + struct.pack(">I", size - 7)  # a bytes of all the rest
    memory[:] = b"a" * size
    memory[:7] = begin
    refused = []

    def attempt(work: Any) -> None:
        try:
            work()
        except OSError as error:
            refused.append(error.errno)

    if how == "truncated":
        attempt(lambda: os.ftruncate(memfd, 4096))
        attempt(lambda: os.posix_fallocate(memfd, 0, 2 * size))
        assert len(refused) == 2 and os.fstat(memfd).st_size == size
    if how == "sealed by the cell":
        fcntl.fcntl(memfd, 1033, 0x1 | 0x10)  # F_ADD_SEALS: no more seals, no future writes
    if how == "replaced":
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, memfd)
    if how == "changed":
        for _ in range(2):
            if os.fork() == 0:
                while True:  # the head is well and ill in turn, and so is each page
                    for at in (2, 3, *range(4096, size, 4096)):
                        memory[at] ^= 0xFF
    raw.send(struct.pack("<HBBIQQQ", 0x4348, VERSION, 3, 1, call, size, size) + b"\0" * 56)
    time.sleep(0.5)
    raw.detach()


@pytest.mark.parametrize("how", ["left mapped", "truncated", "sealed by the cell", "replaced"])
def test_memory_of_a_result_is_the_hosts_whatever_its_cell_does(
    how: str, next_call_works: None
) -> None:
    other = nap.submit()
    outcome = sandbox(memory_attack, timeout_sec=5, result_mb=8, **LONG_WAY).run(how)
    assert outcome.status == "returned", outcome
    assert outcome.value == b"a" * ((4 << 20) - 7)
    assert other.result() == "slept"


def test_memory_of_a_result_that_is_changed_while_it_is_read_is_one_value_or_none(
    next_call_works: None,
) -> None:
    changed = sandbox(memory_attack, timeout_sec=5, result_mb=8, **LONG_WAY)
    other = nap.submit()
    for _ in range(4):
        outcome = changed.run("changed")
        assert outcome.status in ("returned", "raised"), outcome
        if outcome.status == "raised":
            with pytest.raises(hutch.SerializationError):
                outcome.unwrap()
            continue
        value = outcome.value
        assert type(value) is bytes and len(value) <= 4 << 20
        before = hash(value[:])
        assert hash(bytes(bytearray(value))) == before, "and it changes no more"
    assert other.result() == "slept"


def test_a_flood_of_frames_is_held_back(next_call_works: None) -> None:
    with grows_by_less_than(64):
        outcome = attack.run("flood")
    assert outcome.status in ("fault", "died", "limit", "returned")


def test_a_slow_reply_meets_the_absolute_deadline(next_call_works: None) -> None:
    @sandbox(timeout_sec=1, **LONG_WAY)
    def drip() -> int:
        """Keeps saying that it has started, so that an idle timer would never fire."""
        import struct
        import sys
        import time

        frame: Any = sys._getframe()
        while frame is not None and "call_id" not in frame.f_locals:
            frame = frame.f_back
        worker, call = frame.f_locals["self"], frame.f_locals["call_id"]
        while True:
            worker.cell.send(worker.fd, 2, 0, call, 0, 0)
            time.sleep(0.2)
        return len(struct.pack("B", 1))

    begin = time.monotonic()
    outcome = drip.run()
    assert outcome.status in ("limit", "fault", "died")
    assert time.monotonic() - begin < 20  # not for ever


def test_patching_the_encoder_changes_no_measurement(next_call_works: None) -> None:
    @sandbox(timeout_sec=5, **LONG_WAY)
    def lie() -> int:
        import sys
        import time

        frame: Any = sys._getframe()
        while frame is not None and "call_id" not in frame.f_locals:
            frame = frame.f_back
        cell = frame.f_locals["self"].cell
        cell.ran = cell.encoded = lambda: None
        sys.stdout = None
        time.time = lambda: 0.0
        time.sleep(0.5)
        return 1

    begin = time.monotonic()
    outcome = lie.run()
    assert outcome.status == "returned"
    assert outcome.timings["receive"] + outcome.timings["run"] >= 0.0
    assert time.monotonic() - begin >= 0.5


def test_text_that_looks_like_a_frame_is_text(next_call_works: None) -> None:
    @sandbox
    def speak() -> int:
        import sys

        sys.stdout.write("READY:9000\n")
        sys.stdout.buffer.write(b"\x48\x43\x01\x03" + b"\0" * 28 + b"\xc1\x01\xc0")
        return 4

    outcome = speak.run()
    assert (outcome.status, outcome.value) == ("returned", 4)
    assert "READY:9000" in outcome.stdout


def test_control_characters_are_not_echoed_to_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    @sandbox
    def paint() -> int:
        print("\x1b[2J\x1b]0;title\x07red\r\x9b31m\x00end")
        return 1

    assert paint() == 1
    out, err = capfd.readouterr()
    assert "end" in out + err
    assert not set(out + err) & set("\x1b\x07\x00\x9b")


def test_control_characters_in_an_error_are_escaped() -> None:
    @sandbox
    def fail() -> None:
        raise ValueError("\x1b[2Jboo\x07")

    with pytest.raises(ValueError) as caught:
        fail()
    assert not set(str(caught.value)) & set("\x1b\x07")


@sandbox
def odd_result(kind: str) -> Any:
    import sys

    if kind == "lambda":
        return lambda: 1
    if kind == "generator":
        return (n for n in range(3))
    if kind == "coroutine":

        async def later() -> int:
            return 1

        return {"deep": [later()]}
    if kind == "module":
        return sys
    if kind == "file":
        return open("/dev/null")
    if kind == "class":
        return int
    if kind == "cycle":
        me: list[Any] = []
        me.append(me)
        return me
    if kind == "deep":
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        return deep
    if kind == "object":

        class Mine:
            def __reduce__(self) -> Any:
                return (print, ("executed on the host",))

        return Mine()
    if kind == "subclass":

        class Text(str):
            pass

        return Text("x")
    return None


ODD = [
    "lambda",
    "generator",
    "coroutine",
    "module",
    "file",
    "class",
    "cycle",
    "deep",
    "object",
    "subclass",
]


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_data_is_a_serialization_error(kind: str, next_call_works: None) -> None:
    with pytest.raises(hutch.SerializationError) as caught:
        odd_result(kind)
    assert caught.value.type_name
    if kind == "coroutine":
        assert caught.value.path == "result['deep'][0]" or caught.value.path == 'result["deep"][0]'


def test_a_result_larger_than_allowed_is_the_result_limit(next_call_works: None) -> None:
    @sandbox(result_mb=4, memory_mb=512)
    def large(megabytes: int) -> bytes:
        return bytes(megabytes << 20)

    outcome = large.run(40)
    assert (outcome.status, outcome.limit) == ("limit", "result")
    assert len(large(3)) == 3 << 20


def test_what_is_shared_is_the_result_limit_at_once(next_call_works: None) -> None:
    @sandbox(timeout_sec=60, result_mb=8)
    def grow(times: int) -> dict[str, Any]:
        x: list[Any] = []
        for _ in range(times):
            x = [x, x]
        return {"few": [1], "tree": x}

    outcome = grow.run(40)
    assert (outcome.status, outcome.limit) == ("limit", "result"), outcome
    assert 'result["tree"]' in str(outcome.exception())
    assert outcome.usage.wall_sec < 30
    assert grow(2)["tree"] == [[[], []], [[], []]]
