# SPDX-License-Identifier: Apache-2.0
"""What stands in for a worker's source files: bytecode that is taken without a look at them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("bytecode.py")


def compile_into(out: Path, source: Path) -> None:
    command = [sys.executable, "-I", "-S", str(SCRIPT), str(out), f"/worker={source}"]
    subprocess.run(command, check=True)


def test_bytecode_is_taken_without_a_look_at_its_source(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "module.py").write_text("print('compiled')\n")
    compile_into(tmp_path, source)
    place = tmp_path / "worker" / "module.py"
    place.write_text("print('the source')\n")
    assert Path(importlib.util.cache_from_source(str(place))).exists()
    command = "import sys; sys.path.insert(0, sys.argv[1]); import module"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", command, str(place.parent)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("compiled"), done.stdout


def test_a_file_that_does_not_compile_is_left_out(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "bad.py").write_text("def\n")
    (source / "good.py").write_text("x = 1\n")
    (source / "package").mkdir()
    (source / "package" / "inner.py").write_text("x = 1\n")
    (source / "data.txt").write_text("no source")
    compile_into(tmp_path / "out", source)
    made = sorted(path.name.split(".")[0] for path in (tmp_path / "out").rglob("*.pyc"))
    assert made == ["good", "inner"]
    cache = importlib.util.cache_from_source("/worker/package/inner.py")
    assert Path(f"{tmp_path}/out{cache}").exists()
