# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a hostile session: its process says what it likes of its names, and what it gives is
opened in a cell alone. There is one error, and nothing is left of what failed.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import hutch
from hutch import Session
from hutch._carry.container import MOST_LEFT_OUT, MOST_NOTES, Container

REPLACES = """
import gc
state = next(o for o in gc.get_objects() if type(o).__name__ == "State")
honest = state.snapshots.answer
def answer(names, verb, args):
    if verb == {verb!r}: return {answer}
    return honest(names, verb, args)
state.snapshots.answer = answer
"""
TAKES = [
    "5",
    "None",
    "()",
    "(1,)",
    "('1', [])",
    "(-1, [])",
    "(1 << 60, [])",
    "(1 << 200, [])",
    "(10, [5])",
    "(10, [('a',)])",
    "(10, [(b'a', b'b')])",
    "(10, {'a': 'b'})",
]
PARTS = ["None", "'text'", "b''", "b'x'", "bytes(1 << 20)", "[1] * 10"]


@pytest.fixture
def s() -> Iterator[Session]:
    with Session(memory_mb=256, timeout_sec=20) as session:
        session.exec("x = 1").unwrap()
        yield session


def replace(s: Session, verb: str, answer: str) -> None:
    s.exec(REPLACES.format(verb=verb, answer=answer)).unwrap()


def test_its_harmless_counterpart_gives_a_snapshot(s: Session) -> None:
    replace(s, "take", "honest(names, verb, args)")
    with Session(memory_mb=256, snapshot=s.snapshot()) as t:
        assert t["x"] == 1


@pytest.mark.parametrize(("verb", "answer"), [("take", one) for one in TAKES]
                         + [("part", one) for one in PARTS])  # fmt: skip
def test_what_it_says_of_its_names_is_one_error(
    s: Session, verb: str, answer: str, tmp_path: Path
) -> None:
    replace(s, verb, answer)
    for to in (None, tmp_path / "kept"):
        with pytest.raises(hutch.SandboxError, match="gave an invalid reply"):
            s.snapshot(to=to)  # type: ignore[call-overload]
    assert os.listdir(tmp_path) == []


LARGE = """
import gc, struct
state = next(o for o in gc.get_objects() if type(o).__name__ == "State")
files = type(state).execute.__globals__["session_files"]
tree = b"big\\0", b"\\0", struct.pack("=5q", 0, 0, 15 << 30, 1, 1)
files.VERBS["tree"] = lambda *a: tree
at = 0
def get(path, told, most):
    global at
    start, at = at, at + most
    return struct.pack("=5q", start, most, 15 << 30, 1, 1), bytearray(most)
files.VERBS["get"] = get
"""


def test_files_larger_than_a_session_can_have_are_never_written(s: Session, tmp_path: Path) -> None:
    s.exec(LARGE).unwrap()
    for to in (None, tmp_path / "kept"):
        with pytest.raises(OSError, match=r"larger than disk_mb \(256 MiB\), holes included"):
            s.snapshot(to=to)  # type: ignore[call-overload]
        assert s.exec("at").value == 4 << 20, "one part was asked for"
        s.exec("at = 0").unwrap()
    assert os.listdir(tmp_path) == []


def test_reasons_without_end_are_cut(s: Session) -> None:
    replace(s, "take", "(0, [(f'{i}' + 'n' * 5000, 'w' * 600) for i in range(1500)])")
    gc.collect()
    notes = Container(s.snapshot()).notes
    assert len(notes.left_out) <= MOST_LEFT_OUT + 1 and len(notes.to_bytes()) < MOST_NOTES
    assert any(one.endswith("more") for one in notes.left_out.values())


RESTORES = [
    *("5", "None", "('no',)", "('missing', 1, 2)", "('refused',)"),
    *("('ok',)", "('ok', [], [], [])", "('ok', {}, [])", "('ok', [], [1])"),
    *("('ok', [(1, 'a')], [])", "('ok', [('a', 1)], [])"),
    *("('ok', [('a', -1, 'f' * 64)], [])", "('ok', [('a', 1, 'F' * 64)], [])"),
    *("('ok', [('a', 1, '\\n')], [])", "('ok', [], [('a', b'b')])", "('ok', [], [('a',)])"),
]


@pytest.mark.parametrize("answer", RESTORES)
def test_what_it_says_of_a_restore_is_one_error(s: Session, answer: str) -> None:
    saved = s.snapshot()
    replace(s, "restore", answer)
    with pytest.raises(hutch.SandboxError, match="gave an invalid reply"):
        s.restore(saved)


def test_its_harmless_counterpart_gives_a_receipt(s: Session) -> None:
    saved = s.snapshot()
    replace(s, "restore", "('ok', [('a', 1, 'f' * 64)], [('b', 'because\\n' * 500)])")
    receipt = s.restore(saved)
    assert receipt.names == {"a": hutch.RestoredPart(1, "f" * 64)}
    assert list(receipt.left_out) == ["b"] and len(receipt.left_out["b"]) <= 500


def test_what_it_says_cannot_reach_a_terminal(s: Session) -> None:
    saved = s.snapshot()
    replace(s, "restore", "('missing', '\\x1b[31mred', 'x' * 10**6)")
    with pytest.raises(hutch.SnapshotError) as error:
        s.restore(saved)
    assert "\x1b" not in str(error.value) and len(str(error.value)) < 1000


def test_what_it_gives_is_opened_by_nobody_but_a_cell(s: Session) -> None:
    """Pickles that would write here: taken, looked at, kept by name, opened in another cell."""
    mark = Path("/tmp/hutch-snapshot-attack")
    mark.unlink(missing_ok=True)
    writes = f"open({str(mark)!r}, 'w')"
    source = f"class Bad:\n    def __reduce__(self): return exec, ({writes!r},)\n"
    s.exec(source + "bad = Bad()").unwrap()
    saved = s.snapshot()
    Container(saved).close()
    with Session(memory_mb=256, snapshot=saved) as t:
        assert t.exec(f"import os; os.path.exists({str(mark)!r})").value is True
    assert not mark.exists()
