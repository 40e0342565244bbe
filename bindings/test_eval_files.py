# SPDX-License-Identifier: Apache-2.0
"""Files of problems and samples: each mistake in one is told with its place and what to do."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from hutch.evals.files import BadInput, read_problems, read_samples, task_name

PROBLEMS: dict[str, dict[str, Any]] = {"HumanEval/0": {}, "Mbpp/2": {}}
FIELDS: dict[str, tuple[type, ...]] = {"prompt": (str,), "atol": (int, float)}
GOOD = {"task_id": "HumanEval/0", "completion": "    return 1\n"}


@pytest.mark.parametrize("given", [2, "2", "02", "Mbpp/2", "MBPP/2", "mbpp/2"])
def test_numbers_of_mbpp_are_one_name(given: Any) -> None:
    assert task_name(given) == "Mbpp/2"


@pytest.mark.parametrize("given", [None, True, -1, 1 << 70, 2.0, ["a"], {}])
def test_what_is_no_name(given: Any) -> None:
    assert task_name(given) is None


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz"])
def test_lines_and_lists_are_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    two = [GOOD, {"task_id": 2, "solution": "é"}]
    text = json.dumps(two) if name == "a.json" else "\n\n".join(map(json.dumps, two)) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    assert read_samples(path, PROBLEMS) == two


@pytest.mark.parametrize(
    ("line", "said", "hint"),
    [
        ("", "has no samples", "a sample is"),
        ("{", "a.jsonl:1 is not JSON", "JSON lines"),
        ("[" * 100_000, "is not JSON", "JSON lines"),
        ('{"a":' * 100_000, "a.jsonl:1 is not JSON", "JSON lines"),
        ("[1]", "item 1 is not a JSON object", "begins with {"),
        ("7", "a.jsonl:1 is not a JSON object", "begins with {"),
        ('{"completion": ""}', "a.jsonl:1 has no task_id", "a sample is"),
        ('{"task_id": ["a"], "completion": ""}', "a.jsonl:1 has no task_id", "a sample is"),
        ('{"task_id": "X/1", "completion": ""}', "no problem is 'X/1'", "'HumanEval/0', 'Mbpp/2'"),
        ('{"task_id": 3, "completion": ""}', "no problem is 3", "--problems"),
        ('{"task_id": 2}', "has no completion and no solution", '"solution" for a whole program'),
        ('{"task_id": 2, "solution": null}', "its solution is no text, but null", "one sample"),
        ('{"task_id": 2, "completion": ["a"]}', "no text, but a list", "one sample for each"),
        (json.dumps(GOOD) + '\n{"task_id": 2}', "a.jsonl:2 has no completion", "a sample is"),
    ],
)
def test_a_mistake_in_samples_is_told(tmp_path: Path, line: str, said: str, hint: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line)
    with pytest.raises(BadInput) as raised:
        read_samples(path, PROBLEMS)
    assert said in raised.value.message and hint in raised.value.hint
    assert str(raised.value) == f"{raised.value.message}\nhint: {raised.value.hint}"


@pytest.mark.parametrize(
    ("one", "said"),
    [
        ({"prompt": "", "atol": 0}, "has no task_id"),
        ({"task_id": 1, "atol": 0}, "has no 'prompt' that is text"),
        ({"task_id": 1, "prompt": 5, "atol": 0}, "has no 'prompt' that is text"),
        ({"task_id": 1, "prompt": "", "atol": "0"}, "has no 'atol' that is a number"),
    ],
)
def test_a_mistake_in_problems_is_told(tmp_path: Path, one: Any, said: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps([one]))
    with pytest.raises(BadInput, match=said) as raised:
        read_problems(path, FIELDS, "take another file")
    assert raised.value.hint == "take another file" and "item 1" in raised.value.message
    path.write_text(json.dumps([{"task_id": 1, "prompt": "", "atol": 0}]))
    assert list(read_problems(path, FIELDS, "")) == ["Mbpp/1"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl.gz", b"{}", "no whole gzip file"),
        ("a.jsonl.gz", gzip.compress(b"{}" * 999)[:-9], "no whole gzip file"),
        ("a.jsonl", gzip.compress(b"{}"), "is not UTF-8"),
        ("a.jsonl", b"", "has no problems"),
    ],
)
def test_a_file_of_another_kind_is_told(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(BadInput, match=said):
        read_problems(path, FIELDS, "")


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"task_id": "a", "completion": "x"}\r\n')
    assert read_samples(path, {"a": {}}) == [{"task_id": "a", "completion": "x"}]


def test_results_are_replaced_when_all_of_them_are_there(tmp_path: Path) -> None:
    from hutch.cli.evaluate import _replacing

    out = tmp_path / "results.jsonl"
    out.write_text("before")
    with pytest.raises(KeyboardInterrupt), _replacing(out) as file:
        file.write("half")
        raise KeyboardInterrupt
    assert out.read_text() == "before"
    with _replacing(out) as file:
        file.write("whole")
    assert [one.name for one in tmp_path.iterdir()] == ["results.jsonl"]
    assert out.read_text() == "whole"
    with _replacing(Path("/dev/null")) as file:
        file.write("x")
    assert not Path("/dev/null").is_file() and not Path("/dev/null.part").exists()
