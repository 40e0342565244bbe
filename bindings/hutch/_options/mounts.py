# SPDX-License-Identifier: Apache-2.0
"""`Mount`: a file or directory of the host that a sandbox sees, and which ones are refused.

A mount is checked twice: its path when it is declared, so that a mistake is an error in the line
that makes it, and what lies in it when it is first used. Values; safe on any thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Any

MOST = 32  # mounts of one call
_LENGTH = 200  # characters of a destination

# As podman/mounts.cc has them, which checks again: a mount there would hide what is Hutch's or the
# system's, or be hidden by it.
_TAKEN = (
    "/bin /boot /dev /etc /lib /lib32 /lib64 /libx32 /opt/env /opt/hutch /opt/modules /opt/node "
    "/opt/python /proc /run /sbin /sys /tmp /usr /var/hutch /var/run /var/tmp /work"
).split()

# Names in a home directory that hold credentials of the caller.
CREDENTIALS = (
    ".ssh .aws .gnupg .azure .kube .docker .netrc .git-credentials .pypirc .pgpass .vault-token "
    ".password-store .config/gcloud .config/gh .config/op .config/containers .config/hub "
    ".local/share/keyrings .local/share/containers .mozilla .config/google-chrome"
).split()
_SYSTEM = {
    "/proc": "it shows the host's processes",
    "/sys": "it shows the host's devices",
    "/dev": "it holds the host's devices",
    "/run": "it holds the sockets of the host's services",
    "/var/run": "it holds the sockets of the host's services",
    "/var/lib/containers": "it is Podman's storage",
    "/var/lib/docker": "it is Docker's storage",
}


class Mount:
    """A file or directory of the host that is shown inside, as a value of `mounts=`.

    `source`: its path, relative to the working directory of now; `writable` (default False): what
    is written inside is written to the host, by the caller's own user; `as_caller` (default False):
    code inside may read what only the caller may. `writable=True` implies it.

        @sandbox(mounts={"/data": "./data", "/out": Mount("./out", writable=True)})
        def convert(): ...

    Raises ValueError for what cannot be mounted, with the reason: `/`, what is not there, sockets,
    devices, credentials, Podman's and Hutch's own files; TypeError for what is not a path.
    """

    __module__ = "hutch"

    __slots__ = ("source", "writable", "as_caller")
    source: str
    writable: bool
    as_caller: bool

    def __init__(
        self, source: str | os.PathLike[str], writable: bool = False, as_caller: bool = False
    ) -> None:
        for name, flag in (("writable", writable), ("as_caller", as_caller)):
            if not isinstance(flag, bool):
                raise TypeError(f"Mount({name}=) takes True or False, not {flag!r:.80}")
        object.__setattr__(self, "source", _source(source))
        object.__setattr__(self, "writable", writable)
        object.__setattr__(self, "as_caller", as_caller or writable)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Mount is frozen: make another one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a Mount is frozen: make another one")

    def _key(self) -> tuple[str, bool, bool]:
        return (self.source, self.writable, self.as_caller)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Mount) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"Mount({self.source!r}, writable={self.writable}, as_caller={self.as_caller})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Mount, self._key())


def checked(name: str, value: Any) -> tuple[tuple[str, Mount], ...]:
    """What `mounts=` means: destinations with their mounts, sorted."""
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} takes a dict of destination to source, not {type(value).__name__}")
    if len(value) > MOST:
        raise ValueError(f"{name} has {len(value)} entries; at most {MOST} are taken")
    mounts: dict[str, Mount] = {}
    for key, item in value.items():
        destination = _destination(name, key)
        if destination in mounts:
            raise ValueError(f"{name} has {destination} twice")
        mounts[destination] = _mount(f"{name}[{destination!r}]", item)
    for one in mounts:
        for other in mounts:
            if one != other and within(one, other):
                raise ValueError(
                    f"{name}: {one} lies in {other}, which is mounted too: mount it beside that"
                )
    return tuple(sorted(mounts.items()))


def _mount(name: str, value: Any) -> Mount:
    if isinstance(value, Mount):
        return value
    if isinstance(value, Mapping):  # as TOML has it
        unknown = set(value) - {"source", "writable", "as_caller"}
        if unknown or "source" not in value:
            raise ValueError(f"{name} takes source, writable and as_caller, not {dict(value)!r}")
        return Mount(**value)
    if isinstance(value, (str, os.PathLike)):
        return Mount(value)
    raise TypeError(f"{name} takes a path or a hutch.Mount, not {type(value).__name__}")


def within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _destination(name: str, value: Any) -> str:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise TypeError(f"a destination in {name} is text, not {type(value).__name__}")
    where = f"{name} has the destination {text!r:.120}"
    if not text.startswith("/"):
        raise ValueError(f"{where}: a path in the sandbox begins with '/'")
    parts = text.rstrip("/").split("/")[1:]
    if not parts:
        raise ValueError(f"{where}: name a directory of its own, such as '/data'")
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{where}: write it without '.', '..' and '//'")
    if any(ord(c) < 32 or c in ':,\\"\x7f' for c in text):
        raise ValueError(f'{where}: it holds a character that a mount cannot have (: , \\ ")')
    if len(text.encode("utf-8", "surrogateescape")) > _LENGTH:
        raise ValueError(f"{where}: it is longer than {_LENGTH} bytes")
    path = "/" + "/".join(parts)
    for taken in _TAKEN:
        if within(path, taken) or within(taken, path):
            raise ValueError(
                f"{where}: {taken} is needed by the sandbox itself; take another, such as "
                f"'/data/{parts[-1]}'"
            )
    return path


def _source(value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"a mount's source is a path, not {type(value).__name__}")
    text = os.fspath(value)
    if not isinstance(text, str):
        raise TypeError("a mount's source is text, not bytes")
    if not text or "\0" in text:
        raise ValueError(f"cannot mount {text!r}: it is not a path")
    path = os.path.realpath(os.path.expanduser(text))
    shown = text if path == text else f"{text} ({path})"
    if any(ord(c) < 32 or ord(c) == 127 for c in path):
        raise ValueError(f"cannot mount {shown!r}: its path holds a control character")
    reason = refusal(path)
    if reason:
        raise ValueError(f"cannot mount {shown}: {reason}")
    try:
        status = os.stat(path)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise ValueError(
            f"cannot mount {shown}: {'there is no such path' if missing else error.strerror}"
        ) from None
    kind = special(status.st_mode)
    if kind:
        raise ValueError(f"cannot mount {shown}: it is {kind}, and code inside could use it")
    return path


def special(mode: int) -> str:
    """What a file is that is neither file, directory nor link; "" for those."""
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode):
        return ""
    if stat.S_ISSOCK(mode):
        return "a socket"
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    return "a device"


def refusal(path: str) -> str:
    """Why that path, with no link in it, may not be shown; "" if it may."""
    if path == "/":
        return "it is the whole host; mount the directory that is needed"
    for place, reason in _SYSTEM.items():
        if within(path, place):
            return reason
        if within(place, path):
            return f"it holds {place}, and {reason.replace('it ', 'that ', 1)}"
    for place, reason in _own_places():
        if within(path, place):
            return reason
        if within(place, path):
            return f"it holds {place}: {reason}"
    for name in CREDENTIALS:
        if f"/{name}/" in path + "/":
            return f"{name} holds credentials, which no sandbox may see"
    for home in _homes():
        for name in CREDENTIALS:
            if within(os.path.join(home, name), path):
                return (
                    f"it holds {os.path.join(home, name)}, where credentials are kept; mount a "
                    "directory below it"
                )
    return ""


def _own_places() -> list[tuple[str, str]]:
    """The sockets of the agent, of its Podman, and of the caller's own services."""
    from hutch import _core

    runtime = [f"/run/user/{os.getuid()}", f"/tmp/podman-run-{os.getuid()}"]
    if os.environ.get("XDG_RUNTIME_DIR"):
        runtime.append(os.path.realpath(os.environ["XDG_RUNTIME_DIR"]))
    places = [(one, "it holds the sockets of your services") for one in runtime]
    try:
        paths = _core.paths()
    except _core.Error:  # a host that is not set up yet: nothing of ours is there
        return places
    own = "it is Hutch's own"
    places += [(os.path.realpath(str(paths[key])), own) for key in ("run_dir", "state_dir")]
    places.append((os.path.realpath(str(paths["agent_socket"])), "it is the agent's socket"))
    if paths["service_user"]:
        places.append((str(paths["home"]), own))
    return places


def _homes() -> list[str]:
    import pwd

    homes = {os.path.realpath(os.path.expanduser("~"))}
    for user in pwd.getpwall():
        person = user.pw_uid == 0 or 1000 <= user.pw_uid < 65534
        if user.pw_uid == os.getuid() or (person and os.getuid() == 0):
            homes.add(os.path.realpath(user.pw_dir))
    return [home for home in homes if home != "/"]
