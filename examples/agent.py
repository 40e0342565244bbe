# SPDX-License-Identifier: Apache-2.0
"""An agent at work in one session: a script stands for the model. It calls three tools, hits a time
limit and a memory limit, and goes on with the files that it has.
"""

from __future__ import annotations

import hutch
from hutch import Session

PAGES = {"rain": "1 mm of rain is one litre on a square metre", "sun": "the sun is a star"}
STEPS = [
    "found = search_pages('rain')\nfound",
    "open('notes.txt', 'w').write(read_page(found[0]))",
    "while True: pass",
    "found",
    "data = [bytearray(1 << 20) for _ in range(2000)]",
    "import os; os._exit(1)",
    "open('notes.txt').read()",
    "litres = 12 * 30\nfinish(f'{litres} litres fall on 30 square metres in 12 mm of rain')",
]
answers: list[str] = []


def search_pages(text: str) -> list[str]:
    """The names of pages with this text."""
    return [name for name, page in PAGES.items() if text in page]


def read_page(name: str) -> str:
    """The text of a page."""
    return PAGES[name]


def finish(answer: str) -> None:
    """Ends the work with its answer."""
    answers.append(answer)
    raise hutch.StopExec


def main() -> None:
    tools = [search_pages, read_page, finish]
    with Session(tools=tools, memory_mb=256, timeout_sec=1) as s:
        for step in STEPS:
            outcome = s.exec(step)
            said = outcome.value if outcome.ok else outcome.limit or outcome.status
            lost = f" (lost: {', '.join(s.lost)})" if outcome.restarted else ""
            print(f"{step.splitlines()[0][:50]:<52}{said}{lost}")
            if answers:
                break
    print(f"answer: {answers[0]}")


if __name__ == "__main__":
    main()
