# SPDX-License-Identifier: Apache-2.0
"""The outcomes of the C++ tests, of which each program has many."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

FAILED = ("FAILED", "did not end")


class Cpp:
    """By what `ctest --verbose` has written of the programs of GoogleTest: each line has the number
    of its program, which may have run more than once.
    """

    def __init__(self, text: str) -> None:
        self.outcomes: dict[str, list[str]] = defaultdict(list)  # of each test: OK, SKIPPED, FAILED
        self.texts: dict[str, str] = {}  # of those that failed, the first time
        self.reasons: Counter[str] = Counter()  # of what was skipped
        self.told = 0  # tests that the programs said they would run, the last time
        self.lost: dict[
            str, str
        ] = {}  # programs that failed with no test, as at their exit, and how
        programs: dict[str, list[str]] = defaultdict(list)
        for number, line in re.findall(r"^(\d+): (.*)$", text, re.MULTILINE):
            programs[number].append(line)
        for number, lines in programs.items():
            failed = len(self.texts)
            self._read_program("\n".join(lines))
            end = rf"Test +#{number}: (\S+) \.*\*\*\*(.+?) +[\d.]+ sec"
            if len(self.texts) == failed and (found := re.search(end, text)):
                self.lost[found[1]] = found[2]
        silent = len(self.names("SKIPPED")) - self.reasons.total()
        self.reasons += Counter({"no reason is said": silent})

    def names(self, *hows: str) -> list[str]:
        """Of the tests whose last outcome is one of these."""
        return [name for name, found in self.outcomes.items() if found[-1] in hows]

    @property
    def unstable(self) -> dict[str, str]:
        """How each that failed no more at last had ended before, and programs without a test."""
        passed = [name for name in self.names("OK", "SKIPPED") if name in self.texts]
        return {name: self.outcomes[name][0] for name in passed} | self.lost

    def _read_program(self, text: str) -> None:
        begin = r"^.*\[=+\] Running (\d+) tests? from .*$"
        _, *attempts = re.split(begin, text, flags=re.MULTILINE)  # how many tests, what they said
        if not attempts:
            return
        self.told += int(attempts[-2])
        for attempt in attempts[1::2]:
            for test in attempt.split("[ RUN      ] ")[1:]:
                self._read_test(test.partition("\n")[0].strip(), test)
        skips = r"^\S+:\d+: Skipped\n(.+)$"
        self.reasons += Counter(re.findall(skips, attempts[-1], re.MULTILINE))

    def _read_test(self, name: str, text: str) -> None:
        end = re.search(rf"\[ *(OK|SKIPPED|FAILED) *\] {re.escape(name)}\b.* \(\d+ ms", text)
        how = end[1] if end else "did not end"
        self.outcomes[name].append(how)
        if how in FAILED:
            self.texts.setdefault(name, text[: end.end()] if end else text)
