# SPDX-License-Identifier: Apache-2.0
"""Streams the base image of the worker containers to standard output, as a tar.

Run by the interpreter that the sandbox is to have too: `python -I -S derive.py`. What goes in is
that interpreter, moved to /opt/python with its standard library (bytecode included, tests left
out), the shared libraries it needs, `sh`, coreutils and the other programs that every Linux has,
libstdc++ and what else wheels may count on, certificates, time zones, C.UTF-8, the types of files,
terminals and one font; nothing else, and no path, user name or machine id of this host. What this
host lacks of the programs and libraries is left out. The same machine gives the same bytes: names
sorted, all times zero, bytecode "unchecked" (PEP 552), so that it needs no times.

Libraries are found by asking the host's own dynamic loader, and put into the directory that loader
searches when it is given no path: the one where it found libc.so.6. Linux with glibc only.

One process and one pass; memory stays at the largest single file. Exits 1 with one line on standard
error where the host cannot give a base image.
"""

from __future__ import annotations

import concurrent.futures
import importlib.util
import io
import marshal
import os
import re
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import BinaryIO

HOME = "/opt/python"
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"

# What no program in a sandbox needs from the standard library: two thirds of its size.
SKIPPED_DIRECTORIES = {
    "__pycache__", "test", "tests", "idle_test", "idlelib", "tkinter", "turtledemo", "_bundled",
    "site-packages", "dist-packages", "lib-dynload",
}  # fmt: skip
SKIPPED_FILES = {"sitecustomize.py", "usercustomize.py", "EXTERNALLY-MANAGED", "turtle.py"}
SKIPPED_MODULES = re.compile(r"(_test|_tkinter|_xxtest|xx|_ctypes_test)")

COREUTILS = """
    [ arch b2sum base32 base64 basename basenc cat chgrp chmod chown cksum comm cp csplit cut
    date dd df dir dirname du echo env expand expr factor false fmt fold groups head hostid id
    install join link ln logname ls md5sum mkdir mkfifo mknod mktemp mv nice nl nohup nproc
    numfmt od paste pathchk pr printenv printf ptx pwd readlink realpath rm rmdir seq sha1sum
    sha224sum sha256sum sha384sum sha512sum shred shuf sleep sort split stat stdbuf stty sum
    sync tac tail tee test timeout touch tr true truncate tsort tty uname unexpand uniq unlink
    vdir wc whoami yes
""".split()

# What programs that were written for any Linux call. Some are scripts for sh.
TOOLS = """
    awk bash bunzip2 bzip2 cmp diff diff3 egrep fgrep find free getconf getopt grep gunzip gzip
    flock git git-receive-pack git-upload-archive git-upload-pack hostname iconv jq kill ldd less
    more patch pgrep pkill ps rev sdiff sed setsid tar top uptime watch which xargs xz unxz xzcat
    zcat zgrep column hexdump
""".split()

# What git runs of its own besides itself: scripts that need no Perl, and what those run. What
# speaks to networks is left out.
GIT_SCRIPTS = """
    git-bisect git-filter-branch git-merge-octopus git-merge-one-file git-merge-resolve
    git-quiltimport git-request-pull git-sh-i18n git-sh-i18n--envsubst git-sh-setup git-submodule
""".split()
GIT_PLACES = ("/usr/lib/git-core", "/usr/libexec/git-core")
GIT_TEMPLATES = ("description", "info/exclude")  # of /usr/share/git-core/templates

# For the wheels that link them (PEP 600 lists what a manylinux wheel may take from the system), and
# for the dependency installer.
EXTRA_LIBRARIES = """
    libstdc++.so.6 libgomp.so.1 libgcc_s.so.1 libatomic.so.1 librt.so.1 libpthread.so.0
    libm.so.6 libmvec.so.1 libdl.so.2 libutil.so.1 libresolv.so.2 libnsl.so.1 libanl.so.1
    libnss_files.so.2 libnss_dns.so.2 libz.so.1 libexpat.so.1 libX11.so.6 libXext.so.6
    libXrender.so.1 libICE.so.6 libSM.so.6 libGL.so.1 libglib-2.0.so.0 libgobject-2.0.so.0
    libgthread-2.0.so.0
""".split()

# Copied as they are, where the host has them: time zones, UTF-8, terminals, one font, types of
# files, names of ports and protocols.
TREES = ("/usr/lib/locale/C.utf8", "/usr/share/zoneinfo", "/usr/lib/terminfo")
FONTS = "/usr/share/fonts/truetype/dejavu"
FACES = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono", "DejaVuSerif")
TABLES = ("/etc/mime.types", "/etc/protocols", "/etc/services")

CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)

ETC = {
    "etc/passwd": "root:x:0:0:root:/tmp:/bin/sh\ncell:x:1000:1000:cell:/tmp:/bin/sh\n",
    "etc/group": "root:x:0:\ncell:x:1000:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "etc/hosts": "127.0.0.1 localhost cell\n::1 localhost cell\n",
    "etc/os-release": 'ID=hutch-base\nNAME="Hutch base image"\n',
}
# ctypes.util.find_library asks `ldconfig -p`. The image has no cache of libraries: the loader finds
# all of them in one directory.
ABI = "libc6,AArch64" if os.uname().machine == "aarch64" else "libc6,x86-64"
LDCONFIG = """#!/bin/sh
[ "$1" = -p ] || exit 0
cat <<'end'
{libraries}end
"""
MOUNT_POINTS = ["proc", "dev", "sys", "run", "work", "opt/env", "opt/hutch", "store"]


class Unsupported(Exception):
    """This host or interpreter cannot give a base image; the message says why."""


def fold(path: str) -> str:
    """Where a file of the host lies in the image: /usr is merged there, whatever the host does."""
    return ("/usr" + path) if re.match(r"/(lib|lib32|lib64|bin|sbin)/", path) else path


def resolved_directory(path: str) -> str:
    """`path` with its directory's symbolic links resolved, and its own name, a soname, kept."""
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def same_length(old: bytes) -> bytes:
    """HOME, padded with slashes to stand for the directory `old`, which ends with one."""
    return HOME.encode().ljust(len(old), b"/")


class Interpreter:
    """The running interpreter, as found on the host: where its parts lie, and where they go."""

    def __init__(self) -> None:
        base = getattr(sys, "_base_executable", None) or sys.executable
        self.executable = os.path.realpath(base)
        self.prefix = os.path.realpath(sys.base_prefix)
        self.stdlib = os.path.realpath(os.path.dirname(os.__file__))
        self.library = os.path.join(HOME, sys.platlibdir, VERSION)
        dynload = [p for p in sys.path if os.path.basename(p) == "lib-dynload" and os.path.isdir(p)]
        self.dynload = os.path.realpath(dynload[0]) if dynload else ""
        # The prefix is compiled into ELF files and bytecode. Overwriting it by a path of the same
        # length keeps every offset; it may name a user. A distribution's /usr is nobody's secret,
        # and too short.
        self._old = self.prefix.encode() + b"/"
        self._known = len(self._old) > len(HOME)

    def anonymous(self, data: bytes) -> bytes:
        if not self._known:
            return data
        # A linker lets one string end inside another: "3.11.7" may be the tail of
        # "/home/me/3.11.7". So where the prefix ends a C string, its last name stays; text has no
        # such trouble.
        bare = re.escape(self._old[:-1])
        head = self._old[: self._old[:-1].rindex(b"/") + 1]
        if len(head) > len(HOME):
            data = re.sub(bare + rb"(?=\0)", same_length(head) + self._old[len(head) : -1], data)
        if b"\0" not in data:
            data = re.sub(bare + rb"(?![\w./-])", HOME.encode(), data)
        return data.replace(self._old, same_length(self._old))

    def extensions(self) -> list[str]:
        if not self.dynload:
            return []
        names = (n for n in sorted(os.listdir(self.dynload)) if not SKIPPED_MODULES.match(n))
        return [os.path.join(self.dynload, n) for n in names if n.endswith(".so")]

    def library_files(self) -> Iterator[tuple[str, str]]:
        """(path on the host, path below the library) of the standard library's files, sorted."""
        for directory, subdirectories, files in os.walk(self.stdlib):
            subdirectories[:] = sorted(
                d
                for d in subdirectories
                if d not in SKIPPED_DIRECTORIES and not d.startswith("config-")
            )
            for name in sorted(files):
                path = os.path.join(directory, name)
                skipped = name in SKIPPED_FILES or name.endswith((".a", ".o", ".pyc", ".exe"))
                if not skipped and os.path.isfile(path):
                    yield path, os.path.relpath(path, self.stdlib)


def needed(binary: str, preload: Sequence[str] = ()) -> dict[str, str]:
    """Soname -> path of all that the loader maps for `binary` and `preload`. Nothing is run."""
    environment = {"LD_TRACE_LOADED_OBJECTS": "1", "LD_PRELOAD": ":".join(preload)}
    answer = subprocess.run([binary], env=environment, capture_output=True, check=False)
    found: dict[str, str] = {}
    for line in os.fsdecode(answer.stdout).splitlines():
        match = re.match(r"\s*(\S+) => (/\S.*) \(0x", line) or re.match(r"\s*((/\S.*)) \(0x", line)
        if match and match[2] not in preload:
            found[os.path.basename(match[1])] = match[2]
        elif "not found" in line:
            # An extension module may want what is not installed: then it does not load on the host
            # either.
            sys.stderr.write(f"hutch: base image: {line.strip()}\n")
    return found


def bytecode(source: bytes, cached: bytes, path: str, size_and_time: tuple[int, int]) -> bytes:
    """A .pyc of `source` that needs no check; made of the host's own where that is up to date."""
    size, mtime = size_and_time
    head = (
        importlib.util.MAGIC_NUMBER
        + b"\0\0\0\0"
        + (mtime & 0xFFFFFFFF).to_bytes(4, "little")
        + (size & 0xFFFFFFFF).to_bytes(4, "little")
    )
    if cached[:16] == head:
        body = cached[16:]
    else:
        code = compile(source, path, "exec", dont_inherit=True, optimize=0)
        assert isinstance(code, CodeType)
        body = marshal.dumps(code)
    header = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little")
    return header + importlib.util.source_hash(source) + body


class Image:
    """The tar being written. Directories above a file are made as they are needed."""

    def __init__(self, out: BinaryIO) -> None:
        self._tar = tarfile.open(fileobj=out, mode="w|", format=tarfile.GNU_FORMAT, bufsize=1 << 20)
        self._seen: set[str] = set()

    def _info(self, path: str, kind: bytes, mode: int) -> tarfile.TarInfo | None:
        path = path.strip("/")
        if path in self._seen:
            return None
        parent = os.path.dirname(path)
        if parent:
            self.directory(parent)
        self._seen.add(path)
        info = tarfile.TarInfo(path)
        info.type, info.mode = kind, mode
        return info

    def directory(self, path: str, mode: int = 0o755) -> None:
        info = self._info(path, tarfile.DIRTYPE, mode)
        if info:
            self._tar.addfile(info)

    def symlink(self, path: str, target: str) -> None:
        info = self._info(path, tarfile.SYMTYPE, 0o777)
        if info:
            info.linkname = target
            self._tar.addfile(info)

    def file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        info = self._info(path, tarfile.REGTYPE, mode)
        if info:
            info.size = len(data)
            self._tar.addfile(info, io.BytesIO(data))

    def copy(self, source: str, path: str | None = None, mode: int | None = None) -> None:
        """A file of the host, by default where the host has it."""
        executable = bool(os.stat(source).st_mode & stat.S_IXUSR)
        self.file(path or fold(source), read(source), mode or (0o755 if executable else 0o644))

    def close(self) -> None:
        self._tar.close()


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def read_cached(source: str) -> bytes:
    try:
        return read(importlib.util.cache_from_source(source, optimization=""))
    except OSError:
        return b""


def add_skeleton(image: Image) -> None:
    for name in ("bin", "sbin", "lib", "lib64"):
        image.directory("usr/" + name)
        image.symlink(name, "usr/" + name)
    for path in MOUNT_POINTS:
        image.directory(path)
    image.directory("tmp", 0o1777)
    image.symlink("var/tmp", "/tmp")
    for path, text in ETC.items():
        image.file(path, text.encode())
    for path in CERTIFICATES:
        if os.path.isfile(path):
            image.copy(path, CERTIFICATES[0], 0o644)
            image.symlink("usr/lib/ssl/cert.pem", CERTIFICATES[0])  # OpenSSL's default on Debian
            image.symlink("etc/ssl/cert.pem", CERTIFICATES[0])
            break
    for path in (*TABLES, *(f"{FONTS}/{face}.ttf" for face in FACES)):
        if os.path.isfile(path):
            image.copy(path, mode=0o644)
    for root in TREES:
        for directory, subdirectories, files in os.walk(root):
            # "right" and "posix" are second and third copies of every zone.
            subdirectories[:] = sorted(d for d in subdirectories if d not in ("right", "posix"))
            for name in sorted(files):
                path = os.path.join(directory, name)
                # A link out of here would be the host's own setting (localtime).
                if os.path.realpath(path).startswith(root + "/"):
                    image.copy(path, mode=0o644)


def add_programs(image: Image) -> dict[str, str]:
    """sh, coreutils and the tools; returns the libraries they need."""
    libraries: dict[str, str] = {}
    for name in ["sh", *COREUTILS, *TOOLS]:
        found = next((p for p in ("/usr/bin/" + name, "/bin/" + name) if os.path.exists(p)), None)
        if found is None:
            if name == "sh":
                raise Unsupported(
                    "the base image needs a shell, and there is no /bin/sh on this host"
                )
            continue
        target = os.path.realpath(found)
        path = "/usr/bin/" + name
        if os.path.basename(target) == name:
            image.copy(target, path, 0o755)
        else:  # dash, or one binary for many names
            image.copy(target, "/usr/bin/" + os.path.basename(target), 0o755)
            image.symlink(path, os.path.basename(target))
        libraries.update(needed(target))
    return libraries


def add_git(image: Image) -> None:
    """What the program git takes from elsewhere, where the host has it."""
    places = [f"{place}/{name}" for place in GIT_PLACES for name in GIT_SCRIPTS]
    places += [f"/usr/share/git-core/templates/{name}" for name in GIT_TEMPLATES]
    for path in places:
        if os.path.isfile(path):
            image.copy(path)


def add_interpreter(image: Image, python: Interpreter) -> None:
    binary = f"{HOME}/bin/{VERSION}"
    image.file(binary, python.anonymous(read(python.executable)), 0o755)
    for name in ("python3", "python"):
        image.symlink(f"{HOME}/bin/{name}", VERSION)
        image.symlink("usr/bin/" + name, f"{HOME}/bin/{VERSION}")
    for path in python.extensions():
        name = os.path.basename(path)
        image.file(python.library + "/lib-dynload/" + name, python.anonymous(read(path)), 0o755)
    image.directory(python.library + "/site-packages")

    stale = []
    for path, relative in python.library_files():
        data = read(path)
        target = os.path.join(python.library, relative)
        if not path.endswith(".py"):
            image.file(target, python.anonymous(data))
            continue
        text = python.anonymous(data)
        image.file(target, text)
        status = os.stat(path)
        job = (text, read_cached(path), target, (status.st_size, int(status.st_mtime)))
        if job[1] and text == data:
            add_bytecode(image, target, python.anonymous(bytecode(*job)))
        else:
            stale.append((text, b"", target, (0, 0)))
    # Some distributions strip bytecode: then all of it is compiled here, on every core.
    if len(stale) < 20:
        for job in stale:
            add_bytecode(image, job[2], compiled(job))
        return
    with concurrent.futures.ProcessPoolExecutor(max_workers=min(os.cpu_count() or 1, 8)) as pool:
        for job, data in zip(stale, pool.map(compiled, stale, chunksize=8), strict=True):
            add_bytecode(image, job[2], data)


def compiled(job: tuple[bytes, bytes, str, tuple[int, int]]) -> bytes:
    try:
        return bytecode(*job)
    except (SyntaxError, ValueError):  # lib2to3 and its like ship examples in other dialects
        return b""


def add_bytecode(image: Image, target: str, data: bytes) -> None:
    if data:
        image.file(importlib.util.cache_from_source(target, optimization=""), data)


def add_libraries(image: Image, python: Interpreter, libraries: dict[str, str]) -> None:
    """`libraries` are other programs'; of two of one name the interpreter's own is taken."""
    own = needed(python.executable, python.extensions() + EXTRA_LIBRARIES)
    if "libc.so.6" not in own:
        raise Unsupported(
            f"the base image needs an interpreter linked with glibc: {sys.executable} is not"
        )
    home = fold(os.path.dirname(resolved_directory(own["libc.so.6"])))
    listed = ""
    for name, path in sorted({**libraries, **own}.items()):
        # The loader itself is found by the path that is written into every program.
        loader = name.startswith(("ld-linux", "ld64", "ld.so"))
        target = fold(path) if loader else os.path.join(home, name)
        image.file(target, python.anonymous(read(path)), 0o755)
        listed += f"\t{name} ({ABI}) => {target}\n"
    image.file("usr/sbin/ldconfig", LDCONFIG.format(libraries=listed).encode(), 0o755)


def main() -> int:
    if sys.platform != "linux":
        sys.stderr.write(f"hutch: base image: Linux is needed, this is {sys.platform}\n")
        return 1
    image = Image(sys.stdout.buffer)
    try:
        python = Interpreter()
        add_skeleton(image)
        libraries = add_programs(image)
        add_git(image)
        add_interpreter(image, python)
        add_libraries(image, python, libraries)
        image.close()
    except (Unsupported, OSError) as error:
        sys.stderr.write(f"hutch: base image: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
