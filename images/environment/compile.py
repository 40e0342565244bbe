# SPDX-License-Identifier: Apache-2.0
"""The compile steps of an environment's build: bytecode for the source files that importing reads.

    python3 -I -S compile.py TREE LIST REPORT [CACHE]

Runs as PID 1 of a container with no network, and executes none of the packages' code. LIST is JSON:

    {"modules": [str]}    before the import step, which then need not compile for itself: the
                          sources of these and of what they import, as far as their text tells
    {"files": [str]}      after it: paths relative to TREE that it found without bytecode

Files come from the import step, which may lie: a path counts only if it is a regular file that is
there, reached through no link. Bytecode is "unchecked" (PEP 552),
since the tree is read-only afterwards, and names the files as workers see them, below /opt/env.
REPORT gets `{"compiled": int, "kept": int}`. A file that does not compile is left out.

Sources are untrusted, and can make a compiler crash or take any amount of memory, so child
processes compile: two, since it is all CPU time. Nothing of a child that fails is used.

With CACHE, the installer's, the bytecode is hard-linked into a store beside the unpacked wheels,
where the install step finds it for the next environment with that wheel. Only what was written here
and now is kept, and for a wheel only what was made of its own source: the source in TREE and the
wheel's are one inode. The unpacked wheels themselves are not written to, so that what a wheel
ships as bytecode and what was compiled are never taken for each other.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import marshal
import os
import re
import resource
import signal
import stat
import sys
import warnings
from collections.abc import Iterator

HOME = "/opt/env"
PROCESSES = 2
MEMORY = 2 << 30  # bytes of address space of each
SECONDS = 60  # of CPU time for one file
STORE = "hutch-bytecode-1"  # in CACHE; install.py has it too
SCANNED = 4 << 20  # bytes of a source that are looked through for imports
LONGEST = 512  # bytes of a module's name
# What is not indented. What is, in `try`, under `if TYPE_CHECKING`, in a function, may not run at
# all: the import step finds out.
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


def bytecode_of(path: str, shown: str) -> bytes:
    loader = importlib.machinery.SourceFileLoader("", path)
    source = loader.get_data(path)
    code = compile(source, shown, "exec", dont_inherit=True, optimize=0)
    head = importlib.util.MAGIC_NUMBER + b"\1\0\0\0" + importlib.util.source_hash(source)
    return head + marshal.dumps(code)


def compile_all(tree: str, paths: list[str]) -> list[str]:
    """Those of `paths` that have bytecode now, of our making."""
    written = []
    for path in paths:
        target = cache_path(path)
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)  # its signal ends the process
        try:
            content = bytecode_of(path, HOME + path[len(tree) :])
            os.makedirs(os.path.dirname(target), exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(target, flags, 0o644), "wb") as file:
                file.write(content)
        except (Exception, MemoryError):
            continue
        written.append(path)
    return written


def child(tree: str, paths: list[str], out: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    written = compile_all(tree, paths)
    data = "".join(path + "\0" for path in written).encode("utf-8", "surrogateescape")
    while data:
        data = data[os.write(out, data) :]


def compile_apart(tree: str, paths: list[str]) -> list[str]:
    """The same, in children."""
    children = []
    for index in range(PROCESSES):
        share = paths[index::PROCESSES]
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(reader)
                child(tree, share, writer)
                status = 0
            finally:
                os._exit(status)
        os.close(writer)
        children.append((pid, reader, share))
    written: list[str] = []
    for pid, reader, share in children:
        with open(reader, "rb") as file:
            compiled = file.read().decode("utf-8", "surrogateescape").split("\0")[:-1]
        if os.waitpid(pid, 0)[1] != 0 or not set(compiled) <= set(share):
            compiled = []
        discard(sorted(set(share) - set(compiled)))
        written += compiled
    return written


def discard(paths: list[str]) -> None:
    for path in paths:
        try:
            os.unlink(cache_path(path))
        except OSError:
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
    store = os.path.join(cache, STORE, importlib.util.MAGIC_NUMBER.hex())
    wheels = wheels_in(cache, tree)
    kept = 0
    for path in paths:
        relative = path[len(tree) + 1 :]
        for wheel in wheels.get(relative.split("/")[0], []):
            source = os.path.join(wheel, relative)
            target = os.path.join(store, os.path.basename(wheel), relative + "c")
            try:
                if os.path.realpath(source) != source or not os.path.samefile(path, source):
                    continue
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.link(cache_path(path), target)
                kept += 1
            except OSError:  # another build was first
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
    discard(paths)  # what is not ours
    written = compile_apart(tree, paths)
    kept = keep_in_cache(sys.argv[4], tree, written) if len(sys.argv) > 4 else 0
    with open(report, "w") as file:
        file.write(json.dumps({"compiled": len(written), "kept": kept}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
