# SPDX-License-Identifier: Apache-2.0
"""evalplus' `untrusted_check`, in two cells: the code runs in one, which never sees what is
expected; what it returned is compared in the other, where it never was.

`evalplus` must be importable here: its special oracles are sent as text.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hutch._outcome import Outcome
from hutch.evals import alone
from hutch.evals.programs import TIMES, made, source_of

if TYPE_CHECKING:
    import numpy

PASS, FAIL, TIMEOUT = "pass", "fail", "timeout"

_RUN = """
import signal

def late(*_):
    raise TimeoutError

def plain(value):
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return kind(map(plain, value))
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return value
    if type(value).__module__ == "numpy":
        return value
    return f"<an object of class {type(value).__name__}>"  # which equals nothing expected

def run(code, entry_point, inputs, limits, fast):
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
            found.append((True, plain(value)))
        except BaseException as error:
            found.append((False, "late" if isinstance(error, TimeoutError) else None))
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

def special(dataset, name, given, out, expected, atol):
    "True or False where this task has an oracle of its own, and None."
    if dataset == "humaneval":
        return abs(_poly(*given, out)) <= atol if name == "find_zero" else None
    if name == "are_equivalent" or (name == "sum_div" and out == 0):
        return True
    if name == "surface_Area" and abs(out - _surface_Area(*given)) <= atol:
        return True
    if name == "digit_distance_nums" and out == _digit_distance_nums(*given):
        return True
    if name in MBPP_OUTPUT_SET_EQ_TASKS:
        return set(out) == set(expected)
    if name in MBPP_OUTPUT_NOT_NONE_TASKS:
        return out == expected if isinstance(out, bool) else expected == (out is not None)
    return None

def equal(dataset, name, given, out, expected, atol):
    known = special(dataset, name, given, out, expected, atol)
    if known is not None and (known or atol == 0):
        return bool(known)
    if known is None and bool(out == expected):
        return True
    if dataset == "humaneval" and name == "find_zero":
        return False
    if atol == 0 and is_floats(expected):
        atol = 1e-6
    if atol == 0 or type(out) is not type(expected):
        return False
    if isinstance(expected, (list, tuple)) and len(out) != len(expected):
        return False
    return bool(np.allclose(out, expected, rtol=1e-07, atol=atol))

def compare(dataset, name, inputs, found, expected, atol, fast):
    details = []
    for given, (returned, out), one in zip(inputs, found, expected):
        try:
            details.append(returned and equal(dataset, name, given, out, one, atol))
        except Exception:
            details.append(False)
        if fast and not details[-1]:
            break
    return details
"""


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
    oracles = _oracles()
    import numpy

    limits = [max(min_time_limit, gt_time_limit_factor * one) for one in ref_time]
    total = min(float(os.getenv("EVALPLUS_TIMEOUT_PER_TASK", 60)), sum(limits)) + 2
    settings = {"dependencies": ["numpy"], "memory_mb": 4096, **keywords}
    run = made(_RUN, "run", timeout_sec=total, **settings)
    outcome = alone.run(
        lambda: run.run(code, entry_point, list(inputs), limits, fast_check), _is_suspect
    )
    if outcome.status == "fault":
        outcome.unwrap()
    nothing = numpy.zeros(0, bool)
    if outcome.limit in TIMES:
        return TIMEOUT, nothing
    if not _is_found(outcome.value, len(inputs)):
        return FAIL, nothing
    settings = {"dependencies": ["numpy"], "memory_mb": settings["memory_mb"]}
    # How long it takes, the code chooses by what it returns.
    compare = made(oracles + _COMPARE, "compare", timeout_sec=total, **settings)
    arguments = (list(inputs), outcome.value, list(expected), atol, fast_check)
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
        and all(type(one) is tuple and len(one) == 2 and type(one[0]) is bool for one in value)
    )


def _is_suspect(outcome: Outcome[Any]) -> bool:
    """Of one of its inputs, or of all of it, the time was over while others had the CPU."""
    found: Any = outcome.value
    late = type(found) is list and any(
        type(one) is tuple and len(one) == 2 and type(one[1]) is str and one == (False, "late")
        for one in found
    )
    return alone.is_suspect(outcome) or (late and alone.waited(outcome))


@lru_cache(maxsize=1)
def _oracles() -> str:
    return source_of("evalplus.eval._special_oracle", "evalplus")
