# SPDX-License-Identifier: Apache-2.0
"""HumanEval+ and MBPP+ as `evalplus.evaluate` measures them: each sample by the inputs of the
original and by evalplus' own. `evalplus` must be importable here.

What is expected is what the canonical solutions return. They run in cells, too, and the host keeps
their answers in the user's cache directory.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from hutch._outcome import Outcome
from hutch.evals import alone, evalplus, oracles
from hutch.evals.files import BadInput, Problems, read_problems
from hutch.evals.plain import PLAIN
from hutch.evals.programs import made

_FIELDS = {
    "prompt": (str,),
    "entry_point": (str,),
    "canonical_solution": (str,),
    "base_input": (list,),
    "plus_input": (list, dict),
    "atol": (int, float),
}
_NAMES = {"humaneval": "human_eval_plus", "mbpp": "mbpp_plus"}  # evalplus.data.get_…
_OVERRIDES = {"humaneval": "HUMANEVAL_OVERRIDE_PATH", "mbpp": "MBPP_OVERRIDE_PATH"}
_MOST_SEC = 300  # one canonical solution, all inputs

_COMPUTE = """
import time

MOST = 2_000_000  # values in one answer: more are not carried, whosever they are

def count(value, most):
    found = 1
    if type(value) in (list, tuple, set, frozenset):
        found = len(value)
        for one in value:
            if found > most:
                break
            if type(one) in (list, tuple, set, frozenset):
                found += count(one, most - found)
    return found

def refuse(value):
    raise TypeError(f"it returns an object of class {type(value).__name__}, which is no data")

def compute(problem):
    code, entry_point, base, plus, not_none = problem
    space = {}
    exec(code, space)
    function = space[entry_point]
    answer = []
    for inputs in (base, plus):
        values, seconds = [], []
        for given in inputs:
            begin = time.perf_counter()
            value = function(*given)
            sec = time.perf_counter() - begin
            value = value is not None if not_none else plain(value, refuse)
            is_large = count(value, MOST) > MOST
            values.append(None if is_large else value)
            seconds.append(None if is_large else sec)
        answer += [values, seconds]
    return answer
"""


class Expected(NamedTuple):
    """Of one problem: what its canonical solution returns for each input, and after how many
    seconds: None for an input that is left out, since the answer has more than 2,000,000 values.
    """

    base: list[Any]
    base_time: list[float | None]
    plus: list[Any]
    plus_time: list[float | None]

    @property
    def left_out(self) -> int:
        return self.base_time.count(None) + self.plus_time.count(None)


def get_problems(dataset: str, path: str | None = None) -> tuple[Problems, str]:
    """The problems of "humaneval" or "mbpp" by their names, and a digest of their file: of `path`,
    of the file that evalplus' own variable names (HUMANEVAL_OVERRIDE_PATH, MBPP_OVERRIDE_PATH), or
    those that evalplus has, which it downloads once. Raises BadInput, and OSError for a file that
    cannot be read.
    """
    path = path or os.environ.get(_OVERRIDES[dataset])
    if path is None:
        return _problems_of_evalplus(dataset)
    hint = f"--problems takes a file of evalplus' release, such as {_FILES[dataset]}"
    problems = read_problems(Path(path), _FIELDS, hint)
    for one in problems.values():
        one["plus_input"] = list(one["plus_input"])  # Mbpp/793 has {}
    if dataset == "mbpp":
        deserialize = _imported("evalplus.data.mbpp").mbpp_deserialize_inputs
        for name, one in problems.items():
            for field in ("base_input", "plus_input"):
                try:
                    one[field] = deserialize(name, one[field])
                except (TypeError, ValueError, LookupError, AttributeError) as error:
                    text = f"{path}: {name}: its {field} is not of its form: {error}"
                    raise BadInput(text, hint) from None
    return problems, hashlib.sha256(Path(path).read_bytes()).hexdigest()


_FILES = {"humaneval": "HumanEvalPlus.jsonl.gz", "mbpp": "MbppPlus.jsonl.gz"}


def _problems_of_evalplus(dataset: str) -> tuple[Problems, str]:
    data = _imported("evalplus.data")
    name = _NAMES[dataset]
    hint = (
        f"get {_FILES[dataset]} elsewhere, and name it with --problems or by {_OVERRIDES[dataset]}"
    )
    try:
        with redirect_stdout(sys.stderr):  # it prints while it downloads
            problems: Problems = getattr(data, f"get_{name}")()
            digest: str = getattr(data, f"get_{name}_hash")()
    except OSError as error:
        raise BadInput(f"evalplus could not download its problems: {error}", hint) from None
    except (ValueError, LookupError, AssertionError) as error:
        raise BadInput(f"the problems that evalplus has are damaged: {error}", hint) from None
    return problems, digest


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BadInput(
            f"evalplus is not installed here, or not whole: {error}", "pip install evalplus"
        ) from None


def expected_outputs(
    dataset: str,
    problems: Problems,
    digest: str,
    watch: Callable[[Iterable[Any], int], Iterable[Any]] | None = None,
    **keywords: Any,
) -> dict[str, Expected]:
    """For each problem, from the cache, or computed in cells and put there. `digest`: of the file
    of the problems; `watch(outcomes, how many)` sees them as they are computed. Raises BadInput for
    a problem whose canonical solution fails, and SandboxError where one could not be run.
    """
    path = _cache_of(dataset, digest, keywords)
    found = _read(path, problems)
    if found is None:
        found = dict(_computed(dataset, problems, watch, keywords))
        _write(path, found)
    return found


def _computed(
    dataset: str,
    problems: Problems,
    watch: Callable[[Iterable[Any], int], Iterable[Any]] | None,
    keywords: dict[str, Any],
) -> Iterator[tuple[str, Expected]]:
    settings = {**evalplus.SETTINGS, "timeout_sec": _MOST_SEC, **keywords}
    compute = made(PLAIN + _COMPUTE, "compute", **settings)
    not_none = oracles.not_none_tasks() if dataset == "mbpp" else ()
    items = (
        (
            one["prompt"] + one["canonical_solution"],
            one["entry_point"],
            one["base_input"],
            one["plus_input"],
            one["entry_point"] in not_none,
        )
        for one in problems.values()
    )
    outcomes: Iterable[Outcome[Any]] = alone.map_all(compute, items, None)
    if watch is not None:
        outcomes = watch(outcomes, len(problems))
    for (name, problem), outcome in zip(problems.items(), outcomes):
        yield name, _expected_of(name, problem, outcome)


def _expected_of(name: str, problem: dict[str, Any], outcome: Outcome[Any]) -> Expected:
    if outcome.status == "fault":
        outcome.unwrap()
    value: Any = outcome.value
    counts = [len(problem[field]) for field in ("base_input", "plus_input") for _ in range(2)]
    if outcome.status == "returned" and _is_expected(value, counts):
        return Expected(*value)
    why = outcome.limit or outcome.status
    if outcome.error is not None:
        why = f"{outcome.error.type}: {outcome.error.message}"
    raise BadInput(
        f"{name}: its canonical solution gave no answers ({why[:500]})",
        "the file of the problems is wrong, or its solution is for another Python",
    )


def _is_expected(value: Any, counts: list[int]) -> bool:
    return (
        type(value) in (list, tuple)
        and all(type(one) is list for one in value)
        and list(map(len, value)) == counts
        and all(
            sec is None or (type(sec) is float and 0 <= sec < math.inf)
            for sec in (*value[1], *value[3])
        )
    )


def check_correctness(
    dataset: str,
    problem: Mapping[str, Any],
    solution: str,
    expected: Expected,
    completion_id: int | None = None,
    fast_check: bool = True,
    min_time_limit: float = 1.0,
    gt_time_limit_factor: float = 4.0,
    **keywords: Any,
) -> dict[str, Any]:
    """{task_id, passed, result, completion_id, base_status, plus_status}. The statuses are "pass",
    "fail" or "timeout", as of `evalplus.evaluate`; it has passed where both are "pass". Of each
    input an answer is due after `gt_time_limit_factor` times what the canonical solution took, and
    not before `min_time_limit` seconds. Raises SandboxError where it could not be run.
    """
    limits = fast_check, min_time_limit, gt_time_limit_factor
    statuses = []
    for kind, wanted, seconds in (
        ("base", expected.base, expected.base_time),
        ("plus", expected.plus, expected.plus_time),
    ):
        rows = [
            (given, one, sec)
            for given, one, sec in zip(problem[f"{kind}_input"], wanted, seconds)
            if sec is not None
        ]
        inputs, answers, times = map(list, zip(*rows)) if rows else ([], [], [])
        check: Any = evalplus.untrusted_check
        given = dataset, solution, inputs, problem["entry_point"], answers, problem["atol"], times
        statuses.append(check(*given, *limits, **keywords)[0])
    passed = statuses == [evalplus.PASS] * 2
    failed = "base" if statuses[0] != evalplus.PASS else "plus"
    result = "timed out" if evalplus.TIMEOUT in statuses else f"failed: inputs of {failed}"
    return {
        "task_id": problem["task_id"],
        "passed": passed,
        "result": "passed" if passed else result,
        "completion_id": completion_id,
        "base_status": statuses[0],
        "plus_status": statuses[1],
    }


def check_all(
    dataset: str,
    samples: Iterable[Mapping[str, Any]],
    problems: Mapping[str, Mapping[str, Any]],
    expected: Mapping[str, Expected],
    num_workers: int | None = None,
    **keywords: Any,
) -> Iterator[dict[str, Any]]:
    """The same of each {task_id, solution}, or {task_id, completion}, which the prompt is put
    before; in order, `num_workers` at a time, by default twice as many as there are CPUs.
    """
    if num_workers is None:
        num_workers = 2 * (os.cpu_count() or 1)
    seen: dict[str, int] = {}
    with ThreadPoolExecutor(num_workers) as threads:
        pending = []
        for one in samples:
            task = one["task_id"]
            seen[task] = seen.get(task, -1) + 1
            solution = one.get("solution")
            if solution is None:
                solution = problems[task]["prompt"] + one["completion"]
            arguments = dataset, problems[task], solution, expected[task], seen[task]
            pending.append(threads.submit(check_correctness, *arguments, **keywords))
        try:
            for future in pending:
                yield future.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def _cache_of(dataset: str, digest: str, keywords: dict[str, Any]) -> Path:
    """By all that the answers depend on."""
    parts: Sequence[object] = (
        dataset,
        digest,
        sys.version,
        PLAIN + _COMPUTE,
        oracles.text(),
        getattr(_imported("evalplus"), "__version__", ""),
        sorted(keywords.items()),
    )
    key = hashlib.sha256(repr(parts).encode()).hexdigest()
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "hutch" / "evals" / f"{dataset}-{key}.pickle"


class _DataOnly(pickle.Unpickler):
    """What a cache holds: values, and no object that runs code as it is loaded."""

    _KINDS = frozenset(
        {
            ("builtins", "complex"),
            ("builtins", "set"),
            ("builtins", "frozenset"),
            ("builtins", "bytearray"),
            ("builtins", "range"),
            ("decimal", "Decimal"),
            ("fractions", "Fraction"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._KINDS:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return super().find_class(module, name)


def _read(path: Path, problems: Problems) -> dict[str, Expected] | None:
    """None where there is none, or none that can be used."""
    try:
        with path.open("rb") as file:
            held = _DataOnly(file).load()
        found = {name: Expected(*held[name]) for name in problems}
    except Exception:  # a pickle that is damaged raises anything
        return None
    for name, one in found.items():
        sizes = [len(problems[name][kind]) for kind in ("base_input", "plus_input")]
        if not _is_expected(tuple(one), [sizes[0], sizes[0], sizes[1], sizes[1]]):
            return None
    return found


def _write(path: Path, found: dict[str, Expected]) -> None:
    """Whole or not at all. A cache that cannot be written is done without."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            try:
                pickle.dump({name: tuple(one) for name, one in found.items()}, file)
                file.close()
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError:
        pass
