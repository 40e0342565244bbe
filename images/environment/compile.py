"""The compile step of an environment's build: bytecode for the source files that importing reads.

    python3 -I -S compile.py LIST REPORT

Runs as PID 1 of a container with no network and no cache, the packages writable at /opt/env. It executes none of their
code. LIST is a JSON array of paths relative to /opt/env; it comes from the import step, whose word is worth
nothing: a path counts only when it is a regular file that really lies there, reached through no link. Bytecode is
"unchecked" (PEP 552): the tree is read-only afterwards. REPORT gets `{"compiled": int}`. A file that does not compile
is left out. Two processes, since compiling is all CPU.
"""

from __future__ import annotations

import importlib.util
import json
import os
import py_compile
import stat
import sys

TREE = "/opt/env"
PROCESSES = 2


def source_path(relative: object) -> str | None:
    """The file's path when it may be compiled, else None."""
    if not isinstance(relative, str) or not relative.endswith(".py") or "\0" in relative:
        return None
    path = os.path.join(TREE, relative)
    cache = os.path.join(os.path.dirname(path), "__pycache__")
    try:
        regular = stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return None
    inside = path.startswith(TREE + "/") and os.path.realpath(path) == path and os.path.realpath(cache) == cache
    return path if regular and inside else None


def compile_all(paths: list[str]) -> int:
    done = 0
    for path in paths:
        target = importlib.util.cache_from_source(path, optimization="")
        try:
            py_compile.compile(
                path, target, doraise=True, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
            )
            os.chmod(target, 0o644)
            done += 1
        except (py_compile.PyCompileError, OSError, ValueError, RecursionError, MemoryError):
            continue
    return done


def main() -> int:
    os.umask(0o022)
    with open(sys.argv[1]) as file:
        listed = json.load(file)
    paths = sorted({p for p in map(source_path, listed) if p}, key=lambda p: (-os.path.getsize(p), p))
    children = []
    for index in range(1, PROCESSES):
        pid = os.fork()
        if pid == 0:
            compile_all(paths[index::PROCESSES])
            os._exit(0)
        children.append(pid)
    compile_all(paths[0::PROCESSES])
    for pid in children:
        os.waitpid(pid, 0)
    with open(sys.argv[2], "w") as file:
        file.write(json.dumps({"compiled": len(paths)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
