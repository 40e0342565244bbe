# SPDX-License-Identifier: Apache-2.0
"""Starts the zygote's interpreter once more where its pool's `env=` has variables that one reads at
its start. Its own settings stay: only the variables are respected, which `-I` would not do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

# PYTHONPATH is for calls (zygote.py), whose streams are UTF-8 whatever PYTHONIOENCODING says, which
# may be no encoding; with the others it would wait for a person.
LEFT_OUT = ("PYTHONINSPECT", "PYTHONIOENCODING", "PYTHONPATH", "PYTHONSTARTUP")


def restart(
    script: str, config: bytes, given: Mapping[str, str], file_of: Callable[[bytes], int]
) -> None:
    """Replaces this process by one that finds `config` in the descriptor that its argument names,
    made by `file_of`. Returns where nothing that is given needs it.
    """
    of_start = {
        name: value
        for name, value in given.items()
        if name.startswith("PYTHON") and name not in LEFT_OUT
    }
    if not of_start:
        return
    file = file_of(config)
    os.set_inheritable(file, True)
    utf8 = [] if "PYTHONUTF8" in of_start else ["-X", "utf8=1"]
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    flags = ["-s", "-S", "-B", *safe, *utf8]
    environment = {**os.environ, **of_start}
    os.execve("/proc/self/exe", ["python3", *flags, script, str(file)], environment)


def config_given() -> bytes | None:
    """What the process before this one was given; None: there was none."""
    if len(sys.argv) < 2:
        return None
    with open(int(sys.argv[1]), "rb") as file:
        return file.read()
