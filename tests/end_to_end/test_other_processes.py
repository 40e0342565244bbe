# SPDX-License-Identifier: Apache-2.0
"""Sandboxed functions in other processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def run(script: Path, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_calls_from_a_directory_that_was_removed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import json, os, tempfile
os.chdir(tempfile.mkdtemp())
os.rmdir(os.getcwd())
import sys
sys.path.insert(0, "")
import hutch

FACTORS = [3]

@hutch.sandbox
def times(x): return FACTORS[0] * x

@hutch.sandbox(setup=lambda: None)
def fails(): raise ValueError("inside")

found = [times(2), list(times.map([1, 2])), hutch.run("print(5)").stdout]
found.append(str(fails.run().error.type))
with hutch.Session() as s:
    s.files.write("a.txt", "text")
    found += [s.exec("open('a.txt').read()").value, s.bash("cat a.txt").stdout]
print(json.dumps(found))
""")
    assert run(script) == [6, [3, 6], "5\n", "ValueError", "text", "text"]
