# SPDX-License-Identifier: Apache-2.0
"""What `import hutch` loads: a promise of its start-up time that no clock can break."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Loaded only when something asks for it.
LAZY = (
    "asyncio cloudpickle concurrent.futures dataclasses hutch._core inspect json logging numpy "
    "packaging pandas rich socket subprocess tempfile threading traceback urllib"
).split()
MODULES = {"import hutch": 60, "from hutch import sandbox": 75}  # the most there may be then


def loaded_by(code: str) -> set[str]:
    """What it adds to a Python without `site` (which loads what the machine's .pth files say)."""
    import hutch

    root = hutch.__path__[0].rpartition("/")[0]
    whole = f"import sys; sys.path.append({root!r})\n{code}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", whole], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        "import hutch",
        "from hutch import sandbox",
        "from hutch import sandbox\n@sandbox(timeout_sec=5)\ndef f(): pass",
    ],
    ids=["import", "sandbox", "decorated"],
)
def test_importing_hutch_loads_nothing_heavy(code: str) -> None:
    assert loaded_by(code).isdisjoint(LAZY)


@pytest.mark.parametrize("code", MODULES)
def test_importing_hutch_loads_few_modules(code: str) -> None:
    found = loaded_by(code)
    assert len(found) <= MODULES[code], sorted(found)
