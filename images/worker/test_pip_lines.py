# SPDX-License-Identifier: Apache-2.0
"""What a line asks to be installed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pip_lines import requirements_of, said


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("six", ["six"]),
        (
            " -q -U --user six>=1.16 'a[b] ; python_version > \"3\"'  # why",
            ["six>=1.16", 'a[b] ; python_version > "3"'],
        ),
        ("--quiet a \\\n b 2>&1 | tail -1", ["a", "b"]),
        ("a > /dev/null", ["a"]),
        ("a --no-cache-dir --disable-pip-version-check -qq", ["a"]),
    ],
)
def test_packages_are_named(text: str, wanted: list[str]) -> None:
    assert requirements_of(text) == wanted


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names no package"),
        ("-q", "names no package"),
        ("--index-url http://x a", "--index-url: packages are added without"),
        ("-e .", "-e: packages are added without"),
        ("a && b", "a line of its own"),
        ("'a", "No closing quotation"),
    ],
)
def test_what_is_more_than_that_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        requirements_of(text)


@pytest.mark.parametrize("option", ["-r {}", "-r{}", "--requirement {}", "--requirement={}"])
def test_a_file_names_them_line_by_line(tmp_path: Path, option: str) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("# all\nsix==1.16.0  # old\n\n  tabulate\n")
    assert requirements_of(option.format(file)) == ["six==1.16.0", "tabulate"]
    file.write_text("-i http://x\nsix")
    with pytest.raises(ValueError, match="none is taken"):
        requirements_of(option.format(file))
    with pytest.raises(FileNotFoundError):
        requirements_of("-r nowhere")


def test_it_prints_what_pip_does() -> None:
    assert said(["a"], []) == "Requirement already satisfied: a"
    assert said(["a"], ["a==1", "b==2"]) == "Successfully installed a-1 b-2"
