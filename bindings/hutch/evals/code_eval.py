# SPDX-License-Identifier: Apache-2.0
"""`compute_code_eval` of bigcode-evaluation-harness, and `code_eval` of Hugging Face's evaluate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hutch.evals import programs

Results = dict[int, list[tuple[int, dict[str, Any]]]]


def compute_code_eval(
    predictions: Sequence[Sequence[str]],
    references: Sequence[str],
    k: Sequence[int] = (1, 10, 100),
    num_workers: int | None = None,
    timeout: float = 3.0,
    **keywords: Any,
) -> tuple[dict[str, float], Results]:
    """({"pass@1": …}, {task: [(candidate, {task_id, passed, result, completion_id}), …]}).

    `predictions`: for each task, its candidates; `references`: for each, the test that is run after
    the candidate. A k for which a task has too few candidates is left out. `num_workers=None`
    follows what the host bears. Raises SandboxError where one could not be run.
    """
    if len(predictions) != len(references):
        raise ValueError(f"{len(predictions)} predictions have {len(references)} references")
    places = [(task, one) for task, those in enumerate(predictions) for one in range(len(those))]
    texts = (f"{predictions[task][one]}\n{references[task]}" for task, one in places)
    results: Results = {}
    for (task, one), result in zip(
        places, programs.checks(texts, timeout, num_workers, **keywords)
    ):
        passed = result == "passed"
        fields = {"task_id": task, "passed": passed, "result": result, "completion_id": one}
        results.setdefault(task, []).append((one, fields))
    total = [len(those) for those in results.values()]
    correct = [sum(fields["passed"] for _, fields in those) for those in results.values()]
    wanted = [one for one in k if total and min(total) >= one]
    return {f"pass@{one}": programs.pass_at_k(total, correct, one) for one in wanted}, results
