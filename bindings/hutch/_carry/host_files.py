# SPDX-License-Identifier: Apache-2.0
"""Files of the host that a pool shows: inspected, and copied where the agent cannot reach them.

An ordinary user's Podman mounts the source itself: code inside sees each change at once. Root's
containers belong to the service user, who may not read root's files: so root's sources are copied,
and copied again when a call finds them changed. Safe on any thread.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hutch import _core
from hutch._carry import scan
from hutch._connect.connection import PoolRequest
from hutch._errors import SandboxStartupError
from hutch._options.mounts import Mount

if TYPE_CHECKING:
    from hutch._options.options import Options

_CHEAP = 0.02  # seconds: an inspection that takes no longer is made for every call
_PAUSE = 10  # others are repeated after so many times as long as they took
_STORE = """
set -e
umask 022
mkdir -p "$1"
part="$1/$2.$$"
mkdir "$part"
trap 'rm -rf "$part"' EXIT
tar -x -f - -C "$part" --no-same-owner
mv -T "$part" "$1/$2" 2>/dev/null || test -e "$1/$2/content"
"""


class HostFiles:
    """One source; `spec` is what the agent is sent. `kind`: "mounts", or a part of an environment:
    "links", "venv". Raises ValueError, naming the file, for one that may not be shown.
    """

    def __init__(self, kind: str, destination: str, mount: Mount) -> None:
        self.kind = kind
        self.mount = mount
        paths = _core.paths()
        self._copies = os.path.join(str(paths["state_dir"]), "copies")
        self._owner = (int(paths["uid"]), int(paths["gid"]))
        self.is_copy = bool(paths["service_user"])
        if self.is_copy and mount.writable:
            raise ValueError(
                f"cannot mount {mount.source} writable: for root the sandbox is shown a "
                "copy, since the service user's containers may not use root's files; return what "
                "was made as a result, or call as an ordinary user"
            )
        begun = time.monotonic()
        found = self._inspect()
        self.cost = time.monotonic() - begun
        self.digest = found.digest
        self.spec: _core.MountSpec = {
            "source": mount.source,
            "destination": destination,
            "writable": mount.writable,
            "as_caller": mount.as_caller and not self.is_copy,
            "copy": found.digest if self.is_copy else "",
            "device": found.device,
            "inode": found.inode,
        }

    def _inspect(self) -> scan.Findings:
        source = self.mount.source
        try:
            found = scan.examine(source, None if self.is_copy else scan.MOST_SECONDS)
        except OSError as error:
            raise ValueError(f"cannot mount {source}: {error.strerror or error}") from None
        for path, kind in found.specials:
            raise ValueError(
                f"cannot mount {source}: it holds {kind}, {path or source}, that code inside could "
                "use; mount a directory without it"
            )
        for path in found.credentials:
            raise ValueError(
                f"cannot mount {source}: it holds {path}, where credentials are kept; mount a "
                "directory without it"
            )
        for place in _mounted_below(source):
            raise ValueError(
                f"cannot mount {source}: another file system is mounted in it, at {place}, and "
                "would not be read-only inside; name that one as a mount of its own"
            )
        if self.is_copy and os.path.isdir(source) and "" in found.private:
            found.private.remove("")  # that very directory was named; its copy is open
        if found.private and not self.mount.as_caller:
            raise ValueError(
                f"cannot mount {source}: other users may not read {found.private_text()}, so code "
                "inside could not either; make it readable (chmod -R o+rX), or let code inside "
                f"read all that you may: Mount({source!r}, as_caller=True)"
            )
        if self.is_copy and (not found.whole or found.size > scan.MOST_BYTES):
            raise ValueError(
                f"cannot mount {source}: called as root, it is copied, and it has more than "
                f"{scan.MOST_BYTES >> 20} MiB or {scan.MOST_ENTRIES} files; mount a smaller "
                "directory, or call as an ordinary user"
            )
        if self.is_copy and self.mount.as_caller and found.private:
            # Both kinds of copy of one tree differ in what they hold.
            found.digest = _sha(found.digest + " all")
        return found

    def is_current(self) -> bool:
        """Whether the source is still the one that was inspected. The content of a copy or an
        environment counts, too.
        """
        try:
            if self.is_copy or self.kind != "mounts":
                return self._inspect().digest == self.digest
            status = os.lstat(self.mount.source)
        except (ValueError, OSError):
            return False
        return (status.st_dev, status.st_ino) == (self.spec["device"], self.spec["inode"])

    def make_ready(self, progress: Callable[[str, str, float, float], None]) -> None:
        if not self.is_copy:
            return
        content = os.path.join(self._copies, self.digest, "content")
        if not os.path.lexists(content):
            progress("copy", f"copying {self.mount.source}", 0, 0)
            self._copy()
        try:
            os.utime(os.path.dirname(content))  # in use now, so it is not removed
            status = os.lstat(content)
        except OSError as error:
            raise SandboxStartupError(
                f"the copy of {self.mount.source} is missing: {error}", hint="call again"
            ) from None
        self.spec["device"], self.spec["inode"] = status.st_dev, status.st_ino

    def _copy(self) -> None:
        """Reads as the caller, and writes as the service user: neither has the other's rights."""
        uid, gid = self._owner
        writer = subprocess.Popen(
            ["/bin/sh", "-c", _STORE, "sh", self._copies, self.digest],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd="/",
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
            user=uid,
            group=gid,
            extra_groups=[],
        )
        assert writer.stdin is not None and writer.stderr is not None
        failure = ""
        try:
            with writer.stdin:
                scan.write_archive(self.mount.source, writer.stdin, self.mount.as_caller)
        except OSError as error:
            failure = str(error)
        said = writer.stderr.read().decode("utf-8", "replace").strip()
        writer.stderr.close()
        if writer.wait() != 0 or failure:
            raise SandboxStartupError(
                f"{self.mount.source} could not be copied for the sandbox: {said or failure}",
                hint="free some space where its reason says so, or mount a smaller directory",
            )


def _sha(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()


def _mounted_below(source: str) -> list[str]:
    places = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            place = line.split(" ", 5)[4].encode("utf-8", "surrogateescape")
            text = place.decode("unicode_escape") if b"\\" in place else os.fsdecode(place)
            if text.startswith(source + "/"):
                places.append(text)
    return places


class HostFilesRequest(PoolRequest):
    """A pool's request that follows changes of the files that are copied for it."""

    def __init__(
        self,
        make: Callable[[Sequence[HostFiles]], _core.PoolSpec],
        inspect: Callable[[], Sequence[HostFiles]],
        what: str,
        build_sec: float,
    ) -> None:
        super().__init__(self._made, what, build_sec)
        self._make_with = make
        self._inspect_all = inspect
        self._host_files: Sequence[HostFiles] = ()
        self._inspected_at = 0.0
        self._cost = 0.0
        self._lock = threading.RLock()

    def _made(self) -> _core.PoolSpec:
        begun = time.monotonic()
        self._host_files = self._inspect_all()
        self._inspected_at = time.monotonic()
        self._cost = self._inspected_at - begun
        return self._make_with(self._host_files)

    def _pause(self) -> float:
        return 0 if self._cost < _CHEAP else self._cost * _PAUSE

    @property
    def name(self) -> str:
        with self._lock:
            now = time.monotonic()
            if self._spec is not None and now - self._inspected_at >= self._pause():
                if not all(host_files.is_current() for host_files in self._host_files):
                    self._spec, self._name = None, ""
                self._inspected_at = time.monotonic()
                self._cost = self._inspected_at - now
            return super().name

    @property
    def spec(self) -> _core.PoolSpec:
        with self._lock:
            return super().spec

    def make_ready(self, progress: Callable[[str, str, float, float], None]) -> None:
        with self._lock:
            _ = self.spec
            for host_files in self._host_files:
                host_files.make_ready(progress)


def is_needed(options: Options) -> bool:
    environment = options.environment
    return bool(options.mounts or (environment and (environment.venv or environment.directories)))


def inspected(options: Options) -> list[HostFiles]:
    host_files = [HostFiles("mounts", destination, mount) for destination, mount in options.mounts]
    environment = options.environment
    if environment is not None:
        host_files += [HostFiles("links", "", Mount(place)) for place in environment.directories]
        if environment.venv:
            host_files.append(HostFiles("venv", "", Mount(environment.venv)))
    return host_files
