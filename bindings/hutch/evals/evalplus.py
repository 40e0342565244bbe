# SPDX-License-Identifier: Apache-2.0
"""evalplus' `untrusted_check`, in two cells: the code runs in one, which never sees what is
expected; what it returned is compared in the other, where it never was.

`evalplus` must be importable here: its special oracles are sent as text.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hutch._outcome import Outcome
from hutch.evals import alone, oracles
from hutch.evals.plain import PLAIN
from hutch.evals.programs import TIMES, made

if TYPE_CHECKING:
    import numpy

SETTINGS: dict[str, Any] = {"dependencies": ["numpy"], "memory_mb": 4096, "result_mb": 2048}
PASS, FAIL, TIMEOUT = "pass", "fail", "timeout"

_RUN = """
import signal

def late(*_):
    raise TimeoutError

def nothing(value):
    return float("nan")  # which equals nothing

def run(code, entry_point, inputs, limits, fast, by_set):
    space = {}
    exec(code, space)
    function = space[entry_point]
    signal.signal(signal.SIGALRM, late)
    found = []
    for given, limit in zip(inputs, limits):
        try:
            signal.setitimer(signal.ITIMER_REAL, limit)
            try:
                value = function(*given)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            kind = type(value)
            if by_set and kind not in (list, tuple, set, frozenset, dict, str):
                value = list(value)
            value = plain(value, nothing)
            found.append((True, value, type(value) is kind))
        except BaseException as error:
            late_one = isinstance(error, TimeoutError)
            found.append((False, "late" if late_one else None, False))
            if fast:
                break
    return found
"""

_COMPARE = """
import numpy as np

def is_floats(x):
    if isinstance(x, float):
        return True
    if isinstance(x, (list, tuple)) and x:
        return all(isinstance(i, float) for i in x)
    return isinstance(x, np.ndarray) and x.dtype in (np.float64, np.float32)

def equal(dataset, name, given, out, expected, atol):
    "By this task's own oracle, where it has one."
    same = out == expected
    if dataset != "mbpp":
        return same
    if name == "are_equivalent":
        return same or True
    if name == "sum_div":
        return same or out == 0
    if name == "surface_Area":
        return same or abs(out - _surface_Area(*given)) <= atol
    if name == "digit_distance_nums":
        return same or out == _digit_distance_nums(*given)
    if name in MBPP_OUTPUT_SET_EQ_TASKS:
        return set(out) == set(expected)
    if name in MBPP_OUTPUT_NOT_NONE_TASKS:
        return out == expected if isinstance(out, bool) else expected == (out is not None)
    return same

def close(out, same_type, expected, atol):
    if not same_type or type(out) is not type(expected):
        return False
    if isinstance(expected, (list, tuple)) and len(out) != len(expected):
        return False
    return np.allclose(out, expected, rtol=1e-07, atol=atol)

def compare(dataset, name, inputs, found, expected, atol, fast):
    details = []
    for number, ((returned, out, same_type), one) in enumerate(zip(found, expected)):
        given = inputs[number] if inputs else ()
        right = False
        try:
            if not returned:
                pass
            elif dataset == "humaneval" and name == "find_zero":
                right = abs(_poly(*given, out)) <= atol
            else:
                right = equal(dataset, name, given, out, one, atol)
                if atol == 0 and is_floats(one):
                    atol = 1e-6  # evalplus keeps it from here on
                if not right and atol != 0:
                    right = close(out, same_type, one, atol)
            details.append(bool(right))
        except Exception:
            details.append(False)
        if fast and not details[-1]:
            break
    return details
"""

_BY_INPUTS = ("find_zero", "surface_Area", "digit_distance_nums")  # whose oracles look at them


def untrusted_check(
    dataset: str,
    code: str,
    inputs: Sequence[Any],
    entry_point: str,
    expected: Sequence[Any],
    atol: float,
    ref_time: Sequence[float],
    fast_check: bool = False,
    min_time_limit: float = 1.0,
    gt_time_limit_factor: float = 4.0,
    **keywords: Any,
) -> tuple[str, numpy.ndarray[Any, Any]]:
    """("pass", "fail" or "timeout", an array of bool with one for each input that was looked at).
    Arguments as those of `evalplus.eval.untrusted_check`; where all of it takes too long, the array
    is empty. Release 0.3.1 of that never passes HumanEval's find_zero, since it does not note that
    an input passed; this one does. Raises SandboxError where it could not be run, and
    ModuleNotFoundError where `evalplus` is not installed.
    """
    texts = oracles.text()
    import numpy

    by_set = dataset == "mbpp" and entry_point in oracles.set_tasks()

    limits = [max(min_time_limit, gt_time_limit_factor * one) for one in ref_time]
    total = min(float(os.getenv("EVALPLUS_TIMEOUT_PER_TASK", 60)), sum(limits)) + 2
    settings = {**SETTINGS, **keywords}
    run = made(PLAIN + _RUN, "run", timeout_sec=total, **settings)
    arguments: tuple[Any, ...] = (entry_point, list(inputs), limits, fast_check, by_set)
    outcome = alone.run(lambda: run.run(code, *arguments), _is_suspect)
    if outcome.status == "fault":
        outcome.unwrap()
    nothing = numpy.zeros(0, bool)
    if outcome.limit in TIMES:
        return TIMEOUT, nothing
    if not _is_found(outcome.value, len(inputs)):
        return FAIL, nothing
    settings = {"dependencies": ["numpy"], "memory_mb": settings["memory_mb"]}
    # How long it takes, the code chooses by what it returns.
    compare = made(texts + _COMPARE, "compare", timeout_sec=total, **settings)
    looked_at = list(inputs) if entry_point in _BY_INPUTS else []
    arguments = (looked_at, outcome.value, list(expected), atol, fast_check)
    compared = alone.run(lambda: compare.run(dataset, entry_point, *arguments))
    if compared.status == "fault":
        compared.unwrap()
    if compared.status != "returned":
        return FAIL, nothing
    details = numpy.array(compared.value, bool)
    return (PASS if len(details) == len(inputs) and details.all() else FAIL), details


def _is_found(value: Any, count: int) -> bool:
    """Whether it is of the shape that `run` gives, which the code can change. Nothing in it is
    compared: a value of the code may be anything, whose == raises.
    """
    return (
        type(value) is list
        and len(value) <= count
        and all(
            type(one) is tuple and list(map(type, one[::2])) == [bool, bool] and len(one) == 3
            for one in value
        )
    )


def _is_suspect(outcome: Outcome[Any]) -> bool:
    """Of one of its inputs, or of all of it, the time was over while others had the CPU."""
    found: Any = outcome.value
    late = type(found) is list and any(
        type(one) is tuple and len(one) == 3 and one[0] is False and type(one[1]) is str
        for one in found
    )
    return alone.is_suspect(outcome) or (late and alone.waited(outcome))
