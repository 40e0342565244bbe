# SPDX-License-Identifier: Apache-2.0
"""Every Python snippet of the documentation does what it says, against the real thing."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = ("text_program.py", "grading.py", "agent.py", "workbench.py")
EXAMPLES = [ROOT / "examples" / name for name in NAMES]


def snippets() -> list[object]:
    found: list[object] = []
    for page in PAGES:
        for at, text in enumerate(
            re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)
        ):
            found.append(pytest.param(text, id=f"{page.stem}-{at}"))
    return found


def run(arguments: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT / "examples",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("text", snippets())
def test_a_snippet_runs_and_prints_what_its_comments_say(text: str, tmp_path: Path) -> None:
    path = tmp_path / "snippet.py"
    path.write_text(text)
    printed = run([str(path)])
    for said in re.findall(r"^print\(.*\)\s+# (.*)$|^# (.*)$", text, re.M):
        assert (said[0] or said[1]) in printed


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path: Path) -> None:
    assert run([str(path)])


def test_the_example_of_grading_is_not_fooled() -> None:
    lines = dict(line.split(": ", 1) for line in run([str(EXAMPLES[1])]).splitlines())
    assert lines["honest"] == "3 of 3"
    assert lines["mistaken"] == "1 of 3"
    assert lines["cheating"].startswith("0 of 3")


def anchors(page: Path) -> set[str]:
    """What GitHub makes of its headings, of which those that are the same are counted."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.M):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        again = (f"{slug}-{number}" for number in itertools.count(1))
        found.add(slug if slug not in found else next(one for one in again if one not in found))
    return found


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", page.read_text()):
            place = page.parent / target if target else page
            assert place.exists(), f"{page.name}: {target}"
            if anchor and place.suffix == ".md":
                assert anchor in anchors(place), f"{page.name}: {target}#{anchor}"


def test_every_page_is_reached_from_the_readme() -> None:
    linked = set(re.findall(r"\]\(docs/([\w-]+)\.md\)", PAGES[0].read_text()))
    assert linked == {page.stem for page in PAGES[1:]}
