# SPDX-License-Identifier: Apache-2.0
"""LiveCodeBench's `check_correctness`: its own `run_test`, in a cell. `lcb_runner` must be
importable here; its text is sent, so results are those of the version that is installed.
"""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from typing import Any

from hutch._outcome import Outcome
from hutch._text import as_json
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
    answer: Any = outcome.value
    if outcome.status == "returned" and _is_answer(answer, count):
        results, metadata = answer
        return results, as_json(metadata)
    if outcome.limit == "memory" or outcome.status == "raised":
        why = outcome.limit if outcome.error is None else outcome.error.message
        return [-4], {"error_code": -4, "error_message": f"Error during testing: {why}"}
    return [-1] * count, {"error_code": -1, "error_message": "No answer"}


def _is_answer(value: Any, count: int) -> bool:
    """Whether it is of the shape that `run_test` gives, which the code can change. Nothing in it is
    compared: a value of the code may be anything, whose == raises.
    """
    if type(value) is not tuple or len(value) != 2:
        return False
    results, metadata = value
    return (
        type(results) is list
        and type(metadata) is dict
        and min(count, 1) <= len(results) <= count
        and all(_is_result(one) for one in results)
    )


def _is_result(one: Any) -> bool:
    if type(one) is int:
        return -9 <= one <= 1  # any other is no result
    numpy = sys.modules.get("numpy")
    return type(one) is bool or (numpy is not None and type(one) is numpy.bool_)


def _is_suspect(outcome: Outcome[Any]) -> bool:
    """Of one of its tests, or of all of them, the time was over while others had the CPU."""
    answer = outcome.value
    results = answer[0] if type(answer) is tuple and len(answer) == 2 else None
    last = results[-1] if type(results) is list and results else None
    late = type(last) is int and last in (-1, -3)
    return alone.is_suspect(outcome) or (late and alone.waited(outcome))


@lru_cache(maxsize=1)
def _text() -> str:
    return source_of(_RUNNER, "LiveCodeBench")
