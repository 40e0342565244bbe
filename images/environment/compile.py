"""The compile step of an environment's build: bytecode for the source files that importing reads.

    python3 -I -S compile.py TREE LIST REPORT [CACHE]

Runs as PID 1 of a container with no network, and executes none of the packages' code. LIST is a
JSON array of paths relative to TREE; it comes from the import step, whose word is worth nothing: a
path counts only when it is a regular file that really lies there, reached through no link. Bytecode
is "unchecked" (PEP 552), since the tree is read-only afterwards, and names the files as workers see
them, below /opt/env. REPORT gets `{"compiled": int, "kept": int}`. A file that does not compile is
left out. Two processes, since compiling is all CPU.

With CACHE, the installer's, the bytecode is hard-linked beside the unpacked wheel it was made from,
so that the next environment with that wheel has it from the start. A wheel gets bytecode of its own
sources only: the source in TREE and the one in CACHE are one inode, or nothing is linked.
"""

from __future__ import annotations

import importlib.util
import json
import os
import py_compile
import stat
import sys

HOME = "/opt/env"
PROCESSES = 2


def cache_path(path: str) -> str:
    return importlib.util.cache_from_source(path, optimization="")


def source_path(tree: str, relative: object) -> str | None:
    """The file's path when it may be compiled, else None."""
    if not isinstance(relative, str) or not relative.endswith(".py") or "\0" in relative:
        return None
    path = os.path.join(tree, relative)
    cache = os.path.join(os.path.dirname(path), "__pycache__")
    try:
        regular = stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return None
    plain = os.path.realpath(path) == path and os.path.realpath(cache) == cache
    return path if regular and plain and path.startswith(tree + "/") else None


def is_compiled(path: str) -> bool:
    """Whether bytecode that this interpreter takes unseen is there already."""
    try:
        with open(cache_path(path), "rb") as file:
            return file.read(8) == importlib.util.MAGIC_NUMBER + b"\1\0\0\0"
    except OSError:
        return False


def compile_all(tree: str, paths: list[str]) -> None:
    for path in paths:
        target = cache_path(path)
        try:
            py_compile.compile(
                path,
                target,
                dfile=HOME + path[len(tree) :],
                doraise=True,
                quiet=2,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
            os.chmod(target, 0o644)
        except (py_compile.PyCompileError, OSError, ValueError, RecursionError, MemoryError):
            continue


def wheels_in(cache: str, tree: str) -> dict[str, list[str]]:
    """Top-level name -> the unpacked wheels in the installer's cache that TREE has it from."""
    root = os.path.join(cache, "archive-v0")
    wanted = {name for name in os.listdir(tree) if name.endswith(".dist-info")}
    found: dict[str, list[str]] = {}
    for entry in os.listdir(root) if os.path.isdir(root) else []:
        wheel = os.path.join(root, entry)
        names = os.listdir(wheel) if os.path.isdir(wheel) else []
        if wanted.intersection(names):
            for name in names:
                found.setdefault(name, []).append(wheel)
    return found


def keep_in_cache(cache: str, tree: str, paths: list[str]) -> int:
    wheels = wheels_in(cache, tree)
    kept = 0
    for path in paths:
        relative = path[len(tree) + 1 :]
        for wheel in wheels.get(relative.split("/")[0], []):
            source = os.path.join(wheel, relative)
            try:
                if os.path.realpath(source) != source or not os.path.samefile(path, source):
                    continue
                target = cache_path(source)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                if os.path.realpath(os.path.dirname(target)) == os.path.dirname(target):
                    os.link(cache_path(path), target)
                    kept += 1
            except OSError:  # another build was first, or it did not compile
                continue
    return kept


def main() -> int:
    os.umask(0o022)
    tree, listing, report = sys.argv[1:4]
    with open(listing) as file:
        listed = json.load(file)
    found = {p for p in (source_path(tree, item) for item in listed) if p and not is_compiled(p)}
    paths = sorted(found, key=lambda p: (-os.path.getsize(p), p))
    children = []
    for index in range(1, PROCESSES):
        pid = os.fork()
        if pid == 0:
            compile_all(tree, paths[index::PROCESSES])
            os._exit(0)
        children.append(pid)
    compile_all(tree, paths[0::PROCESSES])
    for pid in children:
        os.waitpid(pid, 0)
    kept = keep_in_cache(sys.argv[4], tree, paths) if len(sys.argv) > 4 else 0
    with open(report, "w") as file:
        file.write(json.dumps({"compiled": len(paths), "kept": kept}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
