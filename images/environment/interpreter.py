# SPDX-License-Identifier: Apache-2.0
"""Inspects a base image: which Python it has, and whether what a worker needs works on it.

    python3 -I -S interpreter.py OUT

Runs as PID 1 of a container of an uninspected image, without network, as uid 1000, with whichever
`python3` is on the image's PATH: so it also runs on old versions (3.6). OUT gets one line, which
the image may have forged:

    {"python": path, "version": "3.12.4", "implementation": "cpython", "machine": "x86_64",
     "libc": "2.36", "cell": str, "installer": str, "path": str, "shown": [path],
     "packages": [path]}

`libc` is glibc's version, or "". `cell` and `installer` are "" where the cell's extension and the
dependency installer work, else why they do not. `path` is its PATH. `shown` are directories of its
own, beyond those that every system has; `packages` those that its Python has packages in.
"""

import importlib.machinery
import importlib.util
import json
import os
import platform
import re
import site
import subprocess
import sys

WORKER = "/opt/hutch/worker"
INSTALLER = "/opt/hutch/uv"
# What every system has, what a container is made with, and what cells have of their own.
USUAL = """
    bin boot dev etc lib lib32 lib64 libx32 media mnt opt proc root run sbin store sys tmp usr var
    work
""".split()
OF_ETC = ("alternatives", "fonts", "pki", "ca-certificates")
OF_OPT = ("env", "hutch", "modules", "python")  # what is there is shown anyway, or never
MOST = 64  # directories of each list


def why_no_cell():
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = os.path.join(WORKER, "_hutch_cell" + suffix)
        if os.path.exists(path):
            try:
                spec = importlib.util.spec_from_file_location("_hutch_cell", path)
                spec.loader.exec_module(importlib.util.module_from_spec(spec))
            except Exception as error:
                return str(error) or type(error).__name__
            return ""
    return "it loads no extension of the stable ABI"


def why_no_installer():
    try:
        done = subprocess.run(
            [INSTALLER, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    except OSError as error:  # no such file: neither it nor the loader that it names
        return str(error)
    said = done.stderr.decode("utf-8", "replace").strip()
    return "" if done.returncode == 0 else said[:400] or f"it ended with {done.returncode}"


def libc():
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (ValueError, OSError):
        return ""
    return version if name == "glibc" else ""


def is_plain(path):
    return re.match(r"[A-Za-z0-9._+/-]+\Z", path) is not None


def children(root, left_out=()):
    try:
        names = sorted(os.listdir(root))
    except OSError:
        return []
    paths = [os.path.join(root, name) for name in names if name not in left_out]
    return [path for path in paths if is_own(path)]


def is_own(path):
    """A directory with something in it that a worker may read."""
    try:
        return not os.path.islink(path) and is_plain(path) and bool(os.listdir(path))
    except OSError:
        return False


def packages():
    home = os.path.dirname(os.path.dirname(sys.executable))
    places = site.getsitepackages([sys.prefix])
    if os.path.exists(os.path.join(home, "pyvenv.cfg")):
        # Debian's Python gives those of another layout where it has not looked for its environment.
        name = "python{}.{}".format(*sys.version_info[:2])
        usual = os.path.join(home, "lib", name, "site-packages")
        places = [usual] + site.getsitepackages([home]) + places
    found = []
    for path in places:
        if path not in found and is_own(path):
            found.append(path)
    return found


def main():
    etc = [os.path.join("/etc", name) for name in OF_ETC]
    shown = children("/", USUAL) + children("/opt", OF_OPT) + [path for path in etc if is_own(path)]
    found = {
        "python": sys.executable or os.readlink("/proc/self/exe"),
        "version": platform.python_version(),
        "implementation": sys.implementation.name,
        "machine": platform.machine(),
        "libc": libc(),
        "path": os.environ.get("PATH", ""),
        "cell": why_no_cell(),
        "installer": why_no_installer(),
        "shown": shown[:MOST],
        "packages": packages()[:MOST],
    }
    with open(sys.argv[1], "w") as file:
        file.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
