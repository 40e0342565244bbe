# SPDX-License-Identifier: Apache-2.0
"""HumanEval+ and MBPP+ as `evalplus.evaluate` measures them: each sample by the inputs of the
original and by evalplus' own. `evalplus` must be importable here.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from hutch.evals import evalplus
from hutch.evals.expected import Expected
from hutch.evals.files import BadInput, Problems, read_problems

_FIELDS = {
    "prompt": (str,),
    "entry_point": (str,),
    "canonical_solution": (str,),
    "base_input": (list,),
    "plus_input": (list, dict),
    "atol": (int, float),
}
_NAMES = {"humaneval": "human_eval_plus", "mbpp": "mbpp_plus"}  # evalplus.data.get_…
_OVERRIDES = {"humaneval": "HUMANEVAL_OVERRIDE_PATH", "mbpp": "MBPP_OVERRIDE_PATH"}


def get_problems(dataset: str, path: str | None = None) -> tuple[Problems, str]:
    """The problems of "humaneval" or "mbpp" by their names, and a digest of their file: of `path`,
    of the file that evalplus' own variable names (HUMANEVAL_OVERRIDE_PATH, MBPP_OVERRIDE_PATH), or
    those that evalplus has, which it downloads once. Raises BadInput, and OSError for a file that
    cannot be read.
    """
    path = path or os.environ.get(_OVERRIDES[dataset])
    _imported("evalplus.eval._special_oracle")  # which compares, whosever the problems are
    if path is None:
        return _problems_of_evalplus(dataset)
    hint = f"--problems takes a file of evalplus' release, such as {_FILES[dataset]}"
    problems = read_problems(Path(path), _FIELDS, hint)
    for one in problems.values():
        one["plus_input"] = list(one["plus_input"])  # Mbpp/793 has {}
    if dataset == "mbpp":
        deserialize = _imported("evalplus.data.mbpp").mbpp_deserialize_inputs
        for name, one in problems.items():
            for field in ("base_input", "plus_input"):
                try:
                    one[field] = deserialize(name, one[field])
                except (TypeError, ValueError, LookupError, AttributeError) as error:
                    text = f"{path}: {name}: its {field} is not of its form: {error}"
                    raise BadInput(text, hint) from None
    return problems, hashlib.sha256(Path(path).read_bytes()).hexdigest()


_FILES = {"humaneval": "HumanEvalPlus.jsonl.gz", "mbpp": "MbppPlus.jsonl.gz"}


def _problems_of_evalplus(dataset: str) -> tuple[Problems, str]:
    data = _imported("evalplus.data")
    name = _NAMES[dataset]
    hint = (
        f"get {_FILES[dataset]} elsewhere, and name it with --problems or by {_OVERRIDES[dataset]}"
    )
    try:
        with redirect_stdout(sys.stderr):  # it prints while it downloads
            problems: Problems = getattr(data, f"get_{name}")()
            digest: str = getattr(data, f"get_{name}_hash")()
    except OSError as error:
        raise BadInput(f"evalplus could not download its problems: {error}", hint) from None
    except (ValueError, LookupError, AssertionError) as error:
        raise BadInput(f"the problems that evalplus has are damaged: {error}", hint) from None
    return problems, digest


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BadInput(
            f"evalplus is not installed here, or not whole: {error}", "pip install evalplus"
        ) from None


def check_correctness(
    dataset: str,
    problem: Mapping[str, Any],
    solution: str,
    expected: Expected,
    completion_id: int | None = None,
    fast_check: bool = True,
    min_time_limit: float = 1.0,
    gt_time_limit_factor: float = 4.0,
    **keywords: Any,
) -> dict[str, Any]:
    """{task_id, passed, result, completion_id, base_status, plus_status}. The statuses are "pass",
    "fail" or "timeout", as of `evalplus.evaluate`; it has passed where both are "pass". Of each
    input an answer is due after `gt_time_limit_factor` times what the canonical solution took, and
    not before `min_time_limit` seconds. Raises SandboxError where it could not be run.
    """
    limits = fast_check, min_time_limit, gt_time_limit_factor
    statuses = []
    for kind, wanted, seconds in (
        ("base", expected.base, expected.base_time),
        ("plus", expected.plus, expected.plus_time),
    ):
        rows = [
            (given, one, sec)
            for given, one, sec in zip(problem[f"{kind}_input"], wanted, seconds)
            if sec is not None
        ]
        inputs, answers, times = map(list, zip(*rows)) if rows else ([], [], [])
        check: Any = evalplus.untrusted_check
        given = dataset, solution, inputs, problem["entry_point"], answers, problem["atol"], times
        statuses.append(check(*given, *limits, **keywords)[0])
    passed = statuses == [evalplus.PASS] * 2
    failed = "base" if statuses[0] != evalplus.PASS else "plus"
    result = "timed out" if evalplus.TIMEOUT in statuses else f"failed: inputs of {failed}"
    return {
        "task_id": problem["task_id"],
        "passed": passed,
        "result": "passed" if passed else result,
        "completion_id": completion_id,
        "base_status": statuses[0],
        "plus_status": statuses[1],
    }


def check_all(
    dataset: str,
    samples: Iterable[Mapping[str, Any]],
    problems: Mapping[str, Mapping[str, Any]],
    expected: Mapping[str, Expected],
    num_workers: int | None = None,
    **keywords: Any,
) -> Iterator[dict[str, Any]]:
    """The same of each {task_id, solution}, or {task_id, completion}, which the prompt is put
    before; in order, `num_workers` at a time, by default twice as many as there are CPUs.
    """
    if num_workers is None:
        num_workers = 2 * (os.cpu_count() or 1)
    seen: dict[str, int] = {}
    with ThreadPoolExecutor(num_workers) as threads:
        pending = []
        for one in samples:
            task = one["task_id"]
            seen[task] = seen.get(task, -1) + 1
            solution = one.get("solution")
            if solution is None:
                solution = problems[task]["prompt"] + one["completion"]
            arguments = dataset, problems[task], solution, expected[task], seen[task]
            pending.append(threads.submit(check_correctness, *arguments, **keywords))
        try:
            for future in pending:
                yield future.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
