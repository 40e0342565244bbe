# SPDX-License-Identifier: Apache-2.0
"""`hutch eval` by each of its measures, over problems of our own in the forms of the data sets."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hutch.evals import evalplus, human_eval, mbpp, oracles, plus
from hutch.evals.expected import Expected, expected_outputs
from hutch.evals.files import BadInput, Problems

HUMANEVAL_PLUS = [
    {
        "task_id": "HumanEval/0",
        "prompt": 'def twice(x):\n    """Twice x."""\n',
        "entry_point": "twice",
        "canonical_solution": "    return x * 2\n",
        "contract": "",
        "base_input": [[1], [0]],
        "plus_input": [[-3], [2.5], ["ab"]],
        "atol": 0,
    },
    {
        "task_id": "HumanEval/1",
        "prompt": 'def letters(text):\n    """The different letters of text."""\n',
        "entry_point": "letters",
        "canonical_solution": "    return set(text)\n",
        "contract": "",
        "base_input": [["abba"]],
        "plus_input": [[""], ["xyz"]],
        "atol": 0,
    },
]
MBPP_PLUS = [
    {
        "task_id": "Mbpp/2",
        "prompt": '"""\nThe elements that both have.\n"""\n',
        "entry_point": "similar_elements",
        "canonical_solution": "\ndef similar_elements(a, b):\n    return tuple(set(a) & set(b))\n",
        "contract": "",
        "base_input": [[[3, 4, 5], [5, 4]]],
        "plus_input": [[[], []], [[1], [1, 2]]],
        "atol": 0,
    },
    {
        "task_id": "Mbpp/793",
        "prompt": '"""\nWhether a text begins with a vowel.\n"""\n',
        "entry_point": "check_str",
        "canonical_solution": "import re\ndef check_str(s):\n    return re.match('[aeiou]', s)\n",
        "contract": "",
        "base_input": [["annie"], ["dawood"]],
        "plus_input": {},
        "atol": 0,
    },
]
MBPP = [
    {
        "task_id": 7,
        "text": "Write a function that counts the nodes of a list.",
        "code": "class Node:\r\n  next = None\r\n"
        "def count(n):\r\n  return 1 + count(n.next) if n else 0",
        "test_list": ["assert count(root) == 2", "assert count(None) == 0"],
        "test_setup_code": "root = Node()\r\nroot.next = Node()",
        "challenge_test_list": ["assert count(7) == 'never'"],
    },
    {
        "source_file": "",
        "task_id": 8,
        "prompt": "Write a function that rounds down.",
        "code": "import math\ndef down(x): return math.floor(x)",
        "test_imports": ["import cmath"],
        "test_list": ["assert down(cmath.pi) == 3"],
    },
]
HUMANEVAL = [
    {**one, "test": "def check(f): assert " + test}
    for one, test in zip(HUMANEVAL_PLUS, ("f(2) == 4", "f('aab') == {'a', 'b'}"))
]
ORACLES = """
MBPP_OUTPUT_NOT_NONE_TASKS = ["check_str"]
MBPP_OUTPUT_SET_EQ_TASKS = ["similar_elements"]
def _surface_Area(base, height): return base * height
def _digit_distance_nums(a, b): return abs(a - b)
def _poly(xs, x): return sum(c * x ** i for i, c in enumerate(xs))
"""
DATA = """
def mbpp_deserialize_inputs(name, inputs):
    return [[tuple(one) for one in given] for given in inputs] if name == "Mbpp/2" else inputs
"""
PACKAGE = {
    "evalplus/__init__.py": "__version__ = 'stand-in'",
    "evalplus/eval/__init__.py": "",
    "evalplus/eval/_special_oracle.py": ORACLES,
    "evalplus/data/__init__.py": """
import json
def get_human_eval_plus():
    print("Downloading")
    raise OSError("no network")
def get_mbpp_plus():
    print("Downloading")
    with open(__file__ + ".jsonl") as file:
        return {one["task_id"]: one for one in map(json.loads, file)}
def get_mbpp_plus_hash(): return "a hash"
""",
    "evalplus/data/mbpp.py": DATA,
}
FILES = {"humaneval": HUMANEVAL, "humaneval+": HUMANEVAL_PLUS, "mbpp": MBPP, "mbpp+": MBPP_PLUS}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What is used of evalplus, and a cache of our own."""
    for name, text in PACKAGE.items():
        path = tmp_path / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    oracles.text.cache_clear()
    yield tmp_path
    oracles.text.cache_clear()
    for name in [one for one in sys.modules if one.split(".")[0] == "evalplus"]:
        del sys.modules[name]


def run(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hutch", "eval", *map(str, arguments)]
    env = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)


def written(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def right(one: dict[str, Any]) -> str:
    return str(one["code"] if "code" in one else one["prompt"] + one["canonical_solution"])


@pytest.mark.parametrize("measure", list(FILES))
def test_canonical_solutions_pass_and_others_do_not(package: Path, measure: str) -> None:
    problems = written(package / "problems.jsonl", FILES[measure])
    names = [one["task_id"] for one in FILES[measure]]
    both = [
        sample
        for name, one in zip(names, FILES[measure])
        for sample in (
            {"task_id": name, "solution": right(one), "mine": 1},
            {"task_id": name, "solution": "raise SystemExit(0)"},
        )
    ]
    samples = written(package / "samples.jsonl", both)
    out = package / "out.jsonl"
    done = run(measure, samples, "--problems", problems, "--json", "--k", "1,2", "--out", out)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    rates = {"pass@1": 0.5, "pass@2": 1.0}
    of = {"base": rates, "plus": rates} if measure.endswith("+") else rates
    assert {name: found[name] for name in of} == of
    counts = {"results": {"passed": 2, "failed": 2}, "tasks": 2, "problems": 2, "file": str(out)}
    assert {name: found[name] for name in counts} == counts
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["passed"] for one in results] == [True, False] * 2
    assert [one.get("mine") for one in results] == [1, None] * 2
    shown = run(measure, samples, "--problems", problems)
    assert "50.0%" in shown.stdout and "4 samples of 2 problems" in shown.stdout


def test_the_inputs_of_evalplus_find_what_those_of_the_original_do_not(package: Path) -> None:
    problems = written(package / "problems.jsonl", HUMANEVAL_PLUS)
    lines = [
        {"task_id": "HumanEval/0", "completion": "    return 2 * x if x != -3 else 0\n"},
        {"task_id": "HumanEval/1", "completion": "    return set(text)\n"},
    ]
    samples = written(package / "samples.jsonl", lines)
    done = run("humaneval+", samples, "--json", HUMANEVAL_OVERRIDE_PATH=str(problems))
    found = json.loads(done.stdout)
    assert (found["base"], found["plus"]) == ({"pass@1": 1.0}, {"pass@1": 0.5}), done.stderr
    line = Path(found["file"]).read_text().splitlines()[0]
    statuses = {"base_status": "pass", "plus_status": "fail", "result": "failed: inputs of plus"}
    assert {**json.loads(line), **statuses} == json.loads(line)


def test_a_completion_is_put_behind_the_prompt_and_a_solution_is_not() -> None:
    problem = HUMANEVAL[0]
    problems = {"HumanEval/0": problem}
    body, whole = "    return 2 * x\n", "def twice(x): return 2 * x"
    samples = [
        {"task_id": "HumanEval/0", "completion": body},
        {"task_id": "HumanEval/0", "solution": whole},
        {"task_id": "HumanEval/0", "solution": body},
    ]
    found = list(human_eval.check_all(samples, problems))
    assert [one["passed"] for one in found] == [True, True, False]
    assert [one["completion_id"] for one in found] == [0, 1, 2]


def test_what_mbpp_sets_up_may_use_the_solution() -> None:
    code = right(MBPP[0])
    assert mbpp.check_correctness(MBPP[0], code, 3.0)["result"] == "passed"
    assert not mbpp.check_correctness(MBPP[0], "def count(n): return 2", 3.0)["passed"]
    several = [{"task_id": 8, "completion": right(MBPP[1])}, {"task_id": 8, "solution": ""}]
    answers = mbpp.check_all(several, {8: MBPP[1]})
    assert [(one["passed"], one["completion_id"]) for one in answers] == [(True, 0), (False, 1)]


@pytest.mark.parametrize(
    ("arguments", "said", "hint"),
    [
        (["humaneval+"], "evalplus could not download its problems: no network", "--problems"),
        (["mbpp"], "needs --problems FILE", "sanitized-mbpp.json"),
        (["mbpp", "--problems", "bad"], "its test_list is empty", "sanitized-mbpp.json"),
        (["mbpp+", "--problems", "bad"], "has no 'prompt'", "MbppPlus.jsonl.gz"),
        (["humaneval", "--problems", "bad"], "has no 'prompt'", "HumanEval.jsonl.gz"),
    ],
)
def test_what_cannot_be_used_is_told_with_a_hint(
    package: Path, arguments: list[str], said: str, hint: str
) -> None:
    bad = written(package / "bad", [{"task_id": 2, "test_list": []}])
    samples = written(package / "samples.jsonl", [{"task_id": 2, "completion": ""}])
    words = [str(bad) if one == "bad" else one for one in arguments]
    done = run(words[0], samples, *words[1:], "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 2 and said in found["message"] and hint in found["hint"]


def test_the_problems_of_the_package_are_taken(package: Path) -> None:
    held = package / "packages/evalplus/data/__init__.py.jsonl"
    mine = [{**MBPP_PLUS[1], "base_input": [["annie"]]}]
    samples = written(package / "samples.jsonl", [{"task_id": 793, "solution": right(mine[0])}])
    written(held, mine)
    done = run("mbpp+", samples, "--json")
    assert json.loads(done.stdout)["plus"] == {"pass@1": 1.0} and "Downloading" in done.stderr
    held.write_text("{")
    assert "that evalplus has are damaged" in run("mbpp+", samples).stderr


def test_evalplus_that_is_missing_is_told(tmp_path: Path) -> None:
    problems = written(tmp_path / "problems.jsonl", MBPP_PLUS)
    with pytest.raises(BadInput, match="not installed") as raised:
        plus.get_problems("mbpp", str(problems))
    assert raised.value.hint == "pip install evalplus"


def loaded(package: Path, lines: list[Any], dataset: str = "humaneval") -> tuple[Problems, str]:
    return plus.get_problems(dataset, str(written(package / "problems.jsonl", lines)))


def test_canonical_solutions_run_in_a_sandbox(package: Path) -> None:
    here = package / "here"
    body = f"    open({str(here)!r}, 'w').close()\n"
    problems, digest = loaded(package, [{**HUMANEVAL_PLUS[0], "canonical_solution": body}])
    with pytest.raises(BadInput, match="HumanEval/0: its canonical solution gave no answers"):
        expected_outputs("humaneval", problems, digest)
    assert not here.exists()


@pytest.mark.parametrize(
    "body",
    [
        "    return object()\n",
        "    import os; os._exit(0)\n",
        "    import sys; sys._getframe(1).f_locals['answer'].append(1); return 1\n",
        "    import sys; sys._getframe(1).f_locals['seconds'].append('1'); return 1\n",
    ],
)
def test_a_canonical_solution_without_an_answer_is_told(package: Path, body: str) -> None:
    problems, digest = loaded(package, [{**HUMANEVAL_PLUS[0], "canonical_solution": body}])
    with pytest.raises(BadInput, match="HumanEval/0: its canonical solution gave no answers"):
        expected_outputs("humaneval", problems, digest)


def test_an_input_whose_answer_is_too_large_is_left_out(package: Path) -> None:
    body = "    return [(0,) * 1000] * x\n"
    lines = [{**HUMANEVAL_PLUS[0], "canonical_solution": body, "plus_input": [[1998], [2], [1999]]}]
    problems, digest = loaded(package, lines)
    (expected,) = expected_outputs("humaneval", problems, digest).values()
    assert expected.left_out == 1 and expected.plus_time[2] is None
    solution = lines[0]["prompt"] + "    return [(0,) * 1000] * x if x != 1999 else 5"
    wrong = solution.replace("1999", "1998")
    for one, passed in ((solution, True), (wrong, False)):
        answer = plus.check_correctness("humaneval", problems["HumanEval/0"], one, expected)
        assert answer["passed"] is passed


def test_what_is_expected_is_computed_once_for_each_file(package: Path) -> None:
    computed: list[int] = []

    def watch(found: Any, total: int) -> Any:
        computed.append(total)
        return found

    def outputs(lines: list[Any]) -> dict[str, Expected]:
        return expected_outputs("humaneval", *loaded(package, lines), watch)

    first = outputs(HUMANEVAL_PLUS)
    assert first["HumanEval/0"].plus == [-6, 5.0, "abab"]
    assert first["HumanEval/1"].base == [{"a", "b"}]
    assert outputs(HUMANEVAL_PLUS) == first and computed == [2]
    (cache,) = (package / "cache/hutch/evals").iterdir()
    assert cache.stat().st_mode & 0o077 == 0
    outputs(HUMANEVAL_PLUS[:1])
    assert computed == [2, 1]

    ran = package / "ran"
    for damaged in (b"", cache.read_bytes()[:-9], pickle.dumps(Opens(str(ran))), pickle.dumps({})):
        cache.write_bytes(damaged)
        assert outputs(HUMANEVAL_PLUS)["HumanEval/0"].base == [2, 0]
    assert computed[2:] == [2] * 4 and not ran.exists()


class Opens:
    """Makes a file where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def test_a_cache_that_cannot_be_written_is_done_without(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (package / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(package / "file"))
    found = expected_outputs("humaneval", *loaded(package, HUMANEVAL_PLUS))
    assert found["HumanEval/0"].base == [2, 0]


HEAD = """
from collections import *; from decimal import Decimal; from fractions import Fraction
import enum, types, numpy
class S(str): pass
class I(int): pass
class L(list): pass
class R(Fraction): pass
class E(enum.IntEnum): THREE = 3
P = namedtuple("P", "a b")
def f():
    return """


@pytest.mark.parametrize(
    ("returned", "equal", "other"),
    [
        ("Fraction(1, 2)", 0.5, 0.25),
        ("R(1, 2)", 0.5, 0.25),
        ("Decimal(3)", 3, 4),
        ("S('abc')", "abc", "ab"),
        ("I(3)", 3, 4),
        ("E.THREE", 3, 4),
        ("L([1, I(2)])", [1, 2], (1, 2)),
        ("P(1, S('b'))", (1, "b"), [1, "b"]),
        ("{'a': 1}.keys()", {"a"}, ["a"]),
        ("{'a': 1}.items()", {("a", 1)}, [("a", 1)]),
        ("bytearray(b'ab')", b"ab", "ab"),
        ("Counter('aab')", {"a": 2, "b": 1}, {"a": 2}),
        ("types.MappingProxyType({'a': 1})", {"a": 1}, {}),
        ("UserList([1])", [1], (1,)),
        ("[{1, 2}, frozenset({3})]", [{1, 2}, {3}], [{1, 2}, [3]]),
        ("numpy.int64(3)", 3, 4),
        ("[numpy.float64(0.5)]", [0.5], [0.25]),
        ("True", 1, 0),
    ],
)
def test_answers_are_equal_as_python_has_it(
    package: Path, returned: str, equal: Any, other: Any
) -> None:
    for expected, status in ((equal, "pass"), (other, "fail")):
        found = evalplus.untrusted_check("mbpp", HEAD + returned, [[]], "f", [expected], 0, [1])
        assert (found[0], found[1].tolist()) == (status, [status == "pass"])


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ("(x for x in [1])", [1]),
        ("{1: 2}.values()", [2]),
        ("deque([1])", [1]),
        ("float('nan')", 1.0),
        ("numpy.array([1, 2])", [1, 2]),
        ("numpy.array([None], object)", [None]),
        ("L([0.5 + 1e-9])", [0.5]),
    ],
)
def test_answers_that_evalplus_takes_for_none_are_none(
    package: Path, returned: str, expected: Any
) -> None:
    found = evalplus.untrusted_check("mbpp", HEAD + returned, [[]], "f", [expected], 0, [1])
    assert (found[0], found[1].tolist()) == ("fail", [False])


def test_functions_whose_elements_count_may_return_any_iterable(package: Path) -> None:
    name = "similar_elements"
    code = f"def {name}(a, b): return (x for x in a if x in b)"
    check: Callable[..., Any] = evalplus.untrusted_check
    assert check("mbpp", code, [[(1, 2), (2,)]], name, [(2,)], 0, [1])[0] == "pass"
    assert check("mbpp", code, [[(1, 2), (2,)]], name, [(1,)], 0, [1])[0] == "fail"
    assert check("humaneval", code, [[(1, 2), (2,)]], name, [(2,)], 0, [1])[0] == "fail"


# What a program may do in place of an answer. Each is a body of `def twice(x)`.
HOSTILE = {
    "equals everything": "class A:\n  __eq__ = lambda *_: True\n return A()",
    "raises where compared": "class A:\n  def __eq__(s, o): raise SystemExit\n return A()",
    "raises as a condition": "class A(list):\n  def __bool__(s): raise KeyError\n return A()",
    "lies about its length": "class A(list):\n  __len__ = lambda s: 1 << 62\n return A([0])",
    "has a shape of its own": "class A:\n  shape = (1 << 40,)\n  dtype = float\n return A()",
    "says it is of numpy": "class A: __module__ = 'numpy'\n return A()",
    "says it is a Fraction": "return type('UUID', (), {'__module__': 'uuid'})()",
    "has a class that raises": "class M(type):\n  def __hash__(s): raise MemoryError\n"
    " return M('A', (), {})()",
    "says it is a list": "class A:\n  __class__ = list\n return A()",
    "raises where unpickled": "class A:\n  def __reduce__(s): return 1 // 0, ()\n return A()",
    "returns arrays": "import numpy\n return numpy.zeros(7)",
    "nests deep": "r = []\n for _ in range(100_000): r = [r]\n return r",
    "contains itself": "r = []\n r.append(r)\n return r",
    "returns a huge number": "return 1 << 40_000_000",
    "returns NaN": "return float('nan')",
    "returns too much": "return [b'x' * (1 << 20)] * 3000",
    "never ends to return": "import itertools\n return dict.fromkeys(itertools.count()).keys()",
    "replaces all results": "import sys\n f = sys._getframe(1)\n"
    " f.f_locals['found'][:] = [(True, 1, True)] * 9\n return 0",
    "replaces what makes data": "import sys\n sys._getframe(1).f_globals['plain'] = lambda *_: 1",
    "replaces builtins": "import builtins\n builtins.isinstance = lambda *_: True\n"
    " builtins.type = lambda *_: str\n return 0",
    "ends its process": "import os\n os._exit(0)",
    "kills what it can": "import os\n os.kill(-1, 9)",
    "prints without end": "while True: print('x' * 99_999)",
    "takes all memory": "r = []\n while True: r.append(bytearray(1 << 24))",
    "ignores its time": "import signal\n signal.signal(14, signal.SIG_IGN)\n while True: pass",
    "raises an exit": "raise SystemExit(0)",
    "raises what raises": "class A(BaseException):\n  def __str__(s): raise s\n raise A",
}


@pytest.mark.parametrize("way", ["one by one", "in a file"])
def test_no_hostile_sample_changes_what_becomes_of_others(package: Path, way: str) -> None:
    problems, digest = loaded(package, HUMANEVAL_PLUS[:1])
    expected = expected_outputs("humaneval", problems, digest)
    honest = {"task_id": "HumanEval/0", "completion": "    return x * 2\n"}
    wrong = {"task_id": "HumanEval/0", "completion": "    return 7\n"}
    bad = [
        {"task_id": "HumanEval/0", "solution": f"def twice(x):\n {text}"}
        for text in HOSTILE.values()
    ]
    for one in bad:
        compile(one["solution"], "a hostile sample", "exec")
    samples = [one for each in bad for one in (honest, each, wrong)]
    memory = {"memory_mb": 256}
    if way == "one by one":
        found = list(plus.check_all("humaneval", samples, problems, expected, 2, **memory))
    else:
        tests = {"HumanEval/0": HUMANEVAL[0]}
        found = list(human_eval.check_all(samples, tests, 1.0, **memory))
    passed = [one["passed"] for one in found]
    assert passed[0::3] == [True] * len(HOSTILE)
    if way == "one by one":
        fooled = [name for name, one in zip(HOSTILE, passed[1::3]) if one]
        assert fooled == []
    assert passed[2::3] == [False] * len(HOSTILE)
    assert [one["completion_id"] for one in found] == list(range(len(samples)))
