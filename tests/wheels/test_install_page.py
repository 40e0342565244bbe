# SPDX-License-Identifier: Apache-2.0
"""What docs/install.md tells people to type does what it says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from installation import DIST, ROOT, environment, interpreters

pytestmark = pytest.mark.wheels
BLOCKS = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / "install.md").read_text(), re.S | re.M)


def test_the_other_commands_run_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "dist").symlink_to(DIST)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(next(iter(interpreters().values())))
    typed = environment("page")
    typed["PATH"] = f"{tmp_path / 'bin'}:{typed['PATH']}"
    for block in BLOCKS:
        if block.startswith("sudo "):
            continue
        done = subprocess.run(
            ["sh", "-eux", "-c", block],
            cwd=tmp_path,
            env=typed,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / ".venv" / "bin" / "hutch").exists()
    shutil.rmtree(typed["HUTCH_HOME"], ignore_errors=True)
