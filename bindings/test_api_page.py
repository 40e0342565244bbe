# SPDX-License-Identifier: Apache-2.0
"""docs/api.md is what the docstrings and signatures of this package say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import hutch

ROOT = Path(__file__).parents[1]


def test_the_page_is_as_new_as_the_docstrings() -> None:
    command = [sys.executable, ROOT / "scripts/api_reference.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_each_public_name_and_member_has_a_docstring() -> None:
    page = re.sub(r"^```py\n.*?^```$", "", (ROOT / "docs/api.md").read_text(), flags=re.S | re.M)
    parts = re.split(r"^#{3,6} (.*)$", page, flags=re.M)
    said = dict(zip(parts[1::2], parts[2::2]))
    assert {f"hutch.{name}" for name in hutch.__all__} <= said.keys()
    assert not [name for name, text in said.items() if not text.partition("\n## ")[0].strip()]
