"""The fetch step of an environment's build: resolve, download, install. Runs as PID 1 of a builder
container.

    python3 -I -S fetch.py DIR

DIR holds `fetch.json` (what to install and from where; deleted once read, it may hold credentials).
Into DIR go `tree/` (the packages), `lock.txt` (versions and hashes) and `report.jsonl`: one JSON
object a line, for the agent that reads it as it grows:

    {"stage": "resolve" | "download" | "install", "text": str, "done": number, "total": number}
    {"failed": stage, "log": str}                                                   the end, or
    {"packages": [name==version], "modules": [str], "uncompiled": [str], "bytes": int,
     "files": int}                                                                  the end

`modules` are for import; of the `uncompiled` ones the installer's cache had no bytecode.

Only wheels are installed unless `allow_sdists` is set, so nothing of the packages runs here; this
step alone has the network and the cache. What it leaves is checked: size, number of files, no link
that leads out, no special file, no setuid bit. One thread reads the installer's lines, the main one
watches disk and network counters.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from typing import Any

UV = "/opt/hutch/uv"
PYTHON = sys.executable
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"  # uv has some of its own where these are not
RESERVE = 256 << 20  # bytes: the disk is called full while the host can still write its own state
LOG_LIMIT = 16384
TICK = 0.1
MODULE_LIMIT = 8  # of one distribution

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
        self._common = [] if settings.get("allow_sdists") else ["--only-binary", ":all:"]
        if settings.get("target"):  # another Python than this one will import them
            version, platform = settings["target"]
            self._common += ["--python-version", version, "--python-platform", platform]
        for place in settings.get("find_links", []):
            self._common += ["--find-links", place]
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
            # A pylock.toml has hashes for everything, and they are checked without being told to.
            *(["--preview"] if lock.endswith(".toml") else ["--no-deps", "--require-hashes"]),
            "--target",
            tree,
            "--link-mode",
            self._link_mode,
        ]
        self._run("download", command, {"UV_HTTP_RETRIES": "3"})

    def _run(self, stage: str, arguments: list[str], extra: dict[str, str]) -> None:
        command = [UV, "pip", *arguments, "--python", PYTHON, *self._common]
        process = subprocess.Popen(
            command,
            env={**self._environment, **extra},
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
        if process.wait() != 0:
            raise Failed(
                stage, lines.log or f"the installer ended with status {process.returncode}"
            )


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


def check_tree(tree: str, max_bytes: int, max_files: int) -> tuple[int, int]:
    """Returns (bytes, files) and makes all of it readable for the worker's uid.

    Raises Failed at what must not be there.
    """
    total = files = 0
    for directory, subdirectories, names in os.walk(tree):
        for name in subdirectories + names:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            files += 1
            if stat.S_ISLNK(status.st_mode):
                if not os.path.realpath(path).startswith(tree + "/"):
                    raise Failed(
                        "install",
                        f"refused: a link leads out of the packages: {path[len(tree) + 1 :]}",
                    )
                continue
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                raise Failed("install", f"refused: a special file: {path[len(tree) + 1 :]}")
            total += status.st_size
            executable = stat.S_ISDIR(status.st_mode) or status.st_mode & 0o100
            mode = 0o755 if executable else 0o644
            if stat.S_IMODE(status.st_mode) != mode:
                os.chmod(path, mode)
        if total > max_bytes or files > max_files:
            raise Failed("install", f"refused: more than {max_bytes} bytes or {max_files} files")
    return total, files


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
    """Import names of the direct requirements, in order; none where a marker left one out."""
    records: dict[str, list[str]] = {}
    for entry in sorted(os.listdir(tree)):
        match = re.fullmatch(r"(.+?)-[^-]+\.dist-info", entry)
        if not match:
            continue
        try:
            with open(os.path.join(tree, entry, "RECORD"), newline="", encoding="utf-8") as file:
                records[canonical(match[1])] = [row[0] for row in csv.reader(file) if row]
        except (OSError, UnicodeError, csv.Error):
            continue
    modules: list[str] = []
    for requirement in requirements:
        match = re.match(r"[A-Za-z0-9._-]*[A-Za-z0-9]", requirement)
        name = canonical(match[0]) if match else ""
        for module in import_names(records.get(name, []), name):
            if module not in modules:
                modules.append(module)
    return modules


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
                for line in file:
                    if line.strip() == "":
                        break  # what follows is prose
                    needed = re.match(r"Requires-Dist:\s*([A-Za-z0-9._-]+)", line)
                    if needed and canonical(needed[1]) != canonical(match[1]):
                        wanted.add(canonical(needed[1]))
        except OSError:
            continue
    return sorted(names - wanted) or sorted(names)


def build(directory: str, settings: dict[str, Any], report: Report) -> None:
    tree, lock = os.path.join(directory, "tree"), os.path.join(directory, "lock.txt")
    installer = Installer(settings, directory, report)
    source = lock
    if settings.get("lock"):
        source = given_lock(settings["lock"], lock)
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
    size, files = check_tree(tree, int(settings["max_bytes"]), int(settings["max_files"]))
    asked = settings["requirements"]
    if settings.get("lock"):
        asked, packages = roots(tree), installed(tree)
    modules = direct_modules(tree, asked)
    report.write(
        packages=packages,
        modules=modules,
        uncompiled=uncompiled(tree, modules),
        bytes=size,
        files=files,
    )


def main() -> int:
    directory = os.path.realpath(sys.argv[1])
    os.umask(0o022)
    path = os.path.join(directory, "fetch.json")
    with open(path) as file:
        settings = json.load(file)
    os.unlink(path)
    report = Report(os.path.join(directory, "report.jsonl"))
    # PID 1 ignores a signal it has no handler for.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    try:
        build(directory, settings, report)
    except Failed as failure:
        report.write(failed=failure.stage, log=failure.log)
        return 1
    except OSError as error:
        report.write(failed="install", log=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
