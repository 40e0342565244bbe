# SPDX-License-Identifier: Apache-2.0
"""Starts the zygote's interpreter once more where its pool's `env=` has variables that one reads at
its start. Its own settings stay: only the variables are respected, which `-I` would not do.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Mapping

# What would take the interpreter from its library, or have it wait for a person.
LEFT_OUT = ("PYTHONHOME", "PYTHONINSPECT", "PYTHONPATH", "PYTHONPLATLIBDIR", "PYTHONSTARTUP")
F_SETPIPE_SZ = 1031
PIPE_BYTES = 1 << 17  # more than a configuration has


def is_read_at_start(name: str) -> bool:
    return name.startswith("PYTHON") and name not in LEFT_OUT


def restart(script: str, config: bytes, given: Mapping[str, str]) -> None:
    """Replaces this process by one that finds `config` in the pipe that its argument names. Returns
    where nothing that is given needs it.
    """
    of_start = {name: value for name, value in given.items() if is_read_at_start(name)}
    if not of_start:
        return
    reader, writer = os.pipe()
    fcntl.fcntl(writer, F_SETPIPE_SZ, PIPE_BYTES)
    os.write(writer, config)
    os.close(writer)
    os.set_inheritable(reader, True)
    utf8 = [] if "PYTHONUTF8" in of_start else ["-X", "utf8=1"]
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    flags = ["-s", "-S", "-B", *safe, *utf8]
    environment = {**os.environ, **of_start}
    os.execve("/proc/self/exe", ["python3", *flags, script, str(reader)], environment)


def config_given() -> bytes | None:
    """What the process before this one was given; None: there was none."""
    if len(sys.argv) < 2:
        return None
    with open(int(sys.argv[1]), "rb") as file:
        return file.read()
