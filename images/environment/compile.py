"""The compile steps of an environment's build: bytecode for the source files that importing reads.

    python3 -I -S compile.py TREE LIST REPORT [CACHE]

Runs as PID 1 of a container with no network, and executes none of the packages' code. LIST is JSON:

    {"modules": [str]}    before the import step, which then need not compile for itself: the
                          sources of these and of what they import, as far as their text tells
    {"files": [str]}      after it: paths relative to TREE that it found without bytecode

Files come from the import step, whose word is worth nothing: a path counts only when it is a
regular file that really lies there, reached through no link. Bytecode is "unchecked" (PEP 552),
since the tree is read-only afterwards, and names the files as workers see them, below /opt/env.
REPORT gets `{"compiled": int, "kept": int}`. A file that does not compile is left out. Two
processes, since compiling is all CPU.

With CACHE, the installer's, the bytecode is hard-linked beside the unpacked wheel it was made from,
so that the next environment with that wheel has it from the start. A wheel gets bytecode of its own
sources only: the source in TREE and the one in CACHE are one inode, or nothing is linked.
"""

from __future__ import annotations

import importlib.util
import json
import os
import py_compile
import re
import stat
import sys
from collections.abc import Iterator

HOME = "/opt/env"
PROCESSES = 2
SCANNED = 4 << 20  # bytes of a source that are looked through for imports
LONGEST = 512  # bytes of a module's name
# What is not indented. What is, in `try`, under `if TYPE_CHECKING`, in a function, may not run at
# all: the import step tells.
IMPORTS = re.compile(
    rb"\n(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n#\\]*)|import[ \t]+([^\n#]+))"
)
NAMES = re.compile(rb"(?:^|[,(\n])\s*([\w.]+)")


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


def imported(text: bytes, package: str) -> Iterator[str]:
    """What a source of `package` imports at once: modules, and names that may be modules."""
    for base, names, plain in IMPORTS.findall(b"\n" + text):
        dots = len(base) - len(base.lstrip(b"."))
        above = package.split(".") if dots else []
        del above[max(0, len(above) + 1 - dots) :]
        module = ".".join(above + ([base[dots:].decode()] if base[dots:] else []))
        yield module
        for name in NAMES.findall(names):
            yield module + "." + name.decode()
        for name in NAMES.findall(plain):
            yield name.decode()


def sources_of(tree: str, modules: list[str]) -> Iterator[str]:
    """The files, relative to `tree`, that importing `modules` is to read, as far as their text
    tells. What has bytecode already is passed over: with it came that of what it imports.
    """
    seen: set[str] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name in seen or len(name) > LONGEST:
            continue
        seen.add(name)
        parent = name.rpartition(".")[0]
        waiting.append(parent)
        place = name.replace(".", "/")
        for relative, package in ((place + "/__init__.py", name), (place + ".py", parent)):
            path = source_path(tree, relative)
            if path and not is_compiled(path):
                yield relative
                with open(path, "rb") as file:
                    waiting += imported(file.read(SCANNED), package)


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
        given = json.load(file)
    listed = [*sources_of(tree, given.get("modules", [])), *given.get("files", [])]
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
