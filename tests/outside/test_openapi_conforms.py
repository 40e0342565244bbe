# SPDX-License-Identifier: Apache-2.0
"""schemathesis sends requests that the server's /openapi.json allows, and others: none is a fault
of the server, every answer is as described, what is allowed is taken, and the rest refused.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

HERE = Path(__file__).parent
Serving = Callable[..., AbstractContextManager[tuple[str, "subprocess.Popen[str]"]]]


@pytest.mark.compat
def test_the_server_does_as_its_document_says(
    serving: Serving, installed: Callable[..., Path], tmp_path: Path
) -> None:
    place = installed("schemathesis==4.32.5")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(HERE), str(place))),
        "SCHEMATHESIS_HOOKS": "schemathesis_hooks",
    }
    with serving() as (url, _):
        command = [
            sys.executable, "-S", "-m", "schemathesis.cli",
            "--config-file", str(HERE / "schemathesis.toml"), "run", f"{url}/openapi.json",
            "--phases", "examples,coverage,fuzzing", "--max-examples", "50", "--seed", "1",
            "--continue-on-failure", "--request-timeout", "60",
        ]  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=600
        )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    generated = re.search(r"(\d+) generated", done.stdout)
    assert generated and int(generated[1]) > 1000, done.stdout
