# SPDX-License-Identifier: Apache-2.0
"""What evalplus' canonical solutions return, which samples are compared with. They run in cells;
their answers are kept in the user's cache directory. Safe on any thread.
"""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hutch._outcome import Outcome
from hutch.evals import alone, evalplus, oracles
from hutch.evals.files import BadInput, Problems
from hutch.evals.plain import PLAIN
from hutch.evals.programs import made

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


def _cache_of(dataset: str, digest: str, keywords: dict[str, Any]) -> Path:
    """By all that the answers depend on."""
    parts: Sequence[object] = (
        dataset,
        digest,
        sys.version,
        PLAIN + _COMPUTE,
        oracles.text(),
        oracles.version(),
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
