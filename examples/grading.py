# SPDX-License-Identifier: Apache-2.0
"""Grades untrusted solutions: an answer leaves one call as data and is checked in a second one.

Code under test can forge whatever its own cell says of itself, also a passed test. So the checker
never runs beside it: it sees the answer only, in a cell that the solution never was in.
"""

from __future__ import annotations

import hutch
from hutch import sandbox

SOLUTIONS = {
    "honest": "def solve(numbers):\n    return sorted(numbers)\n",
    "mistaken": "def solve(numbers):\n    return numbers\n",
    "cheating": "import sys\ndef solve(numbers):\n    print('ALL TESTS PASSED')\n    sys.exit(0)\n",
}
CASES = [[3, 1, 2], [], [5, 5, -1]]


@sandbox
def check(case: list[int], answer: object) -> bool:
    return answer == sorted(case)


def grade(source: str) -> str:
    solve = hutch.function(source, "solve", timeout_sec=1, memory_mb=128)
    passed = 0
    for case in CASES:
        outcome = solve.run(case)
        if not outcome.ok:
            return (
                f"{passed} of {len(CASES)}, then: {outcome.status} {outcome.limit or ''}".rstrip()
            )
        passed += check(case, outcome.value)
    return f"{passed} of {len(CASES)}"


def main() -> None:
    for name, source in SOLUTIONS.items():
        print(f"{name}: {grade(source)}")


if __name__ == "__main__":
    main()
