# SPDX-License-Identifier: Apache-2.0
"""LiveCodeBench's `check_correctness`: its own `run_test`, in a cell. `lcb_runner` must be
importable here; its text is sent, so results are those of the version that is installed.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from hutch._outcome import Outcome
from hutch.evals import alone
from hutch.evals.programs import made, source_of

_RUNNER = "lcb_runner.evaluation.testing_util"


def check_correctness(
    sample: dict[str, Any], generation: str, timeout: int, debug: bool = True, **keywords: Any
) -> tuple[list[Any], dict[str, Any]]:
    """(a result for each test until the first that fails, what is known of that one), as
    `lcb_runner.evaluation.compute_code_generation_metrics` has them: True, or -1 (no answer in
    time), -2 (wrong), -3 (too long), -4 (an error). Raises SandboxError where it could not be run,
    and ModuleNotFoundError where `lcb_runner` is not installed.
    """
    count = len(json.loads(sample["input_output"])["inputs"])
    settings = {"dependencies": ["numpy"], "memory_mb": 4096, **keywords}
    run = made(_text(), "run_test", timeout_sec=(timeout + 1) * count + 5, **settings)
    tests = {"input_output": sample["input_output"]}
    outcome = alone.run(
        lambda: run.run(tests, test=generation, debug=debug, timeout=timeout), _is_suspect
    )
    if outcome.status == "fault":
        outcome.unwrap()
    if outcome.status == "returned" and outcome.value is not None:
        results, metadata = outcome.value
        return list(results), dict(metadata)
    if outcome.limit == "memory" or outcome.status == "raised":
        why = outcome.limit if outcome.error is None else outcome.error.message
        return [-4], {"error_code": -4, "error_message": f"Error during testing: {why}"}
    return [-1] * count, {"error_code": -1, "error_message": "No answer"}


def _is_suspect(outcome: Outcome[Any]) -> bool:
    """Of one of its tests, or of all of them, the time was over while others had the CPU."""
    answer = outcome.value
    results = answer[0] if type(answer) is tuple and len(answer) == 2 else None
    late = type(results) is list and bool(results) and results[-1] in (-1, -3)
    return alone.is_suspect(outcome) or (late and alone.waited(outcome))


@lru_cache(maxsize=1)
def _text() -> str:
    return source_of(_RUNNER, "LiveCodeBench")
