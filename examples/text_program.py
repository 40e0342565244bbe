# SPDX-License-Identifier: Apache-2.0
"""Runs programs given as text, for example by a model: the text is never compiled on this host."""

from __future__ import annotations

import hutch

ANSWERS = {
    "right": "numbers = [int(word) for word in input().split()]\nprint(sum(numbers))\n",
    "wrong": "numbers = input().split()\nprint(sum(numbers))\n",
    "endless": "while True:\n    pass\n",
}


def main() -> None:
    for name, source in ANSWERS.items():
        outcome = hutch.run(source, stdin="1 2 3\n", timeout_sec=1, memory_mb=128)
        if outcome.ok:
            print(
                f"{name}: printed {outcome.stdout.strip()!r} after {outcome.usage.wall_sec:.4f} s"
            )
        elif outcome.error is not None:
            print(
                f"{name}: line {outcome.error.line}: {outcome.error.type}: {outcome.error.message}"
            )
        else:
            print(f"{name}: {outcome.status} ({outcome.limit})")


if __name__ == "__main__":
    main()
