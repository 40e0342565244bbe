# SPDX-License-Identifier: Apache-2.0
"""`Environment`: what a sandbox has installed, where a list of requirements does not say it all."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from typing import Any

from hutch._options.checks import without_credentials

_MOST_LOCK = 4 << 20  # bytes


class Environment:
    """What a sandbox has installed, as a value of `environment=`.

    `dependencies`: as `@sandbox` takes them; with `allow_urls=True` (default False) also
    `name @ https://...`. `constraints`: versions of whatever is wanted by something, as
    requirements or the path of a file of them. `lock`: the path of a `pylock.toml`, or of
    requirements with hashes: installed exactly, every hash checked; it takes the place of
    `dependencies`.

    `index_url`, `extra_index_urls`, `find_links` (pages, or directories of wheels): where packages
    come from; default the caller's own pip and uv settings. A user name and password in an address
    reach the step that downloads, as a netrc, and nothing else. `python`: a version such as "3.12",
    refused unless it is this interpreter's or `base` is given. `allow_sdists` (default False): a
    package without a wheel may be built from source, which runs that package's code while it is
    installed, in a container with no secret; such a build has a cache of its own, so that it spoils
    no other.

    `base`: the reference of an OCI image, such as "docker.io/library/python:3.12-slim", that calls
    run on in place of one made from this interpreter; pulled if it is not there. Its Python has to
    be of this interpreter's version, as 3.12 is of 3.12.4, since functions travel as bytecode. What
    is given as text may say `python=` instead: the version of the image. What the image's Python
    has installed can be imported, after `dependencies`. A mismatch, a registry that cannot be
    reached, an image without Python: SandboxStartupError before the call.

        @sandbox(environment=Environment(["docopt"], allow_sdists=True))
        def usage(text): ...

    Raises RequirementError for what is not a requirement, ValueError or TypeError for a bad field,
    OSError for a file that cannot be read.
    """

    __module__ = "hutch"

    __slots__ = (
        "dependencies",
        "index_url",
        "extra_index_urls",
        "find_links",
        "constraints",
        "lock",
        "venv",
        "allow_sdists",
        "allow_urls",
        "base",
        "python",
    )

    def __init__(
        self,
        dependencies: Iterable[str] | str = (),
        *,
        python: str | None = None,
        index_url: str | None = None,
        extra_index_urls: Iterable[str] | str = (),
        find_links: Iterable[str | os.PathLike[str]] | str | os.PathLike[str] = (),
        constraints: Iterable[str] | str | os.PathLike[str] = (),
        lock: str | os.PathLike[str] | None = None,
        allow_sdists: bool = False,
        allow_urls: bool = False,
        base: str | None = None,
    ) -> None:
        from hutch._options.requirements import normalize

        for name, flag in (("allow_sdists", allow_sdists), ("allow_urls", allow_urls)):
            if not isinstance(flag, bool):
                raise TypeError(f"{name} takes True or False, not {type(flag).__name__}")
        self.base = "" if base is None else _reference(base)
        _check_python(python, self.base)
        self.python = python.strip() if python and base else ""  # where it is not the caller's
        self.dependencies = normalize(_items(dependencies), urls=allow_urls)
        self.index_url = "" if index_url is None else _url("index_url", index_url)
        self.extra_index_urls = tuple(
            _url("extra_index_urls", item) for item in _items(extra_index_urls)
        )
        self.find_links = tuple(_link(item) for item in _items(find_links))
        self.constraints = _constraints(constraints)
        self.lock = "" if lock is None else _lock_text(lock)
        self.venv = ""  # the directory of packages of one, see from_path
        self.allow_sdists = allow_sdists
        self.allow_urls = allow_urls
        if self.lock and (self.dependencies or self.constraints):
            raise ValueError(
                "Environment takes either a lock or dependencies and constraints: the lock names "
                "every package already"
            )

    @classmethod
    def from_path(cls, path: str | os.PathLike[str]) -> Environment:
        """That of a `requirements.txt`, a `pylock.toml` or a virtual environment. Raises ValueError
        for any other file, FileNotFoundError where there is none.
        """
        place = os.path.abspath(os.path.expanduser(os.fspath(path)))
        if os.path.isdir(place):
            return cls._from_venv(place)
        name = os.path.basename(place)
        if re.fullmatch(r"pylock(\.[^.]+)?\.toml", name):
            return cls(lock=place)
        if name.endswith((".txt", ".in", ".lock")):
            return cls._from_requirements_file(place)
        if not os.path.exists(place):
            raise FileNotFoundError(f"environment={os.fspath(path)!r}: there is no such path")
        raise ValueError(
            f"environment={os.fspath(path)!r} is not a requirements.txt, pylock.toml or virtual "
            "environment"
        )

    @classmethod
    def _from_requirements_file(cls, place: str) -> Environment:
        from hutch._options.lock import of_lines
        from hutch._options.requirements_file import read

        found = read(place)
        if not found.is_lock:
            return cls(found.requirements, constraints=found.constraints, **found.sources)
        environment = cls(**found.sources)
        environment.lock = of_lines(found.requirements, place)
        return environment

    @classmethod
    def _from_venv(cls, place: str) -> Environment:
        from hutch._options.venv import packages_of

        environment = cls()
        environment.venv = packages_of(place)
        return environment

    @property
    def directories(self) -> tuple[str, ...]:
        """The directories of wheels among `find_links`."""
        return tuple(item for item in self.find_links if "://" not in item)

    @property
    def names(self) -> tuple[str, ...]:
        """name==version of what is installed without being a dependency."""
        if self.venv:
            from hutch._options import venv

            return tuple(venv.names_of(self.venv))
        if self.lock:
            from hutch._options import lock

            return tuple(lock.names_of(self.lock))
        return ()

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Environment) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __repr__(self) -> str:
        parts = [repr(list(self.dependencies))] if self.dependencies else []
        for name in self.__slots__[1:]:
            value = getattr(self, name)
            if value:
                shown = f"<{len(value)} characters>" if name == "lock" else repr(_public(value))
                parts.append(f"{name}={shown}")
        return f"Environment({', '.join(parts)})"


def _items(value: Any) -> list[Any]:
    if isinstance(value, (str, os.PathLike)):
        return [value]
    if value is None:
        return []
    return list(value)


def _public(value: Any) -> Any:
    """Without the credentials of addresses."""
    if isinstance(value, tuple):
        return tuple(map(_public, value))
    return without_credentials(value) if isinstance(value, str) else value


_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    r"(?:(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::\d{1,5})?/)?"
    rf"{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?",
    re.ASCII,
)


def _reference(value: Any) -> str:
    """An image's name, with a registry, tag or digest or without, or its id."""
    if not isinstance(value, str):
        raise TypeError(f"base takes an image's name, not {type(value).__name__}")
    text = value.strip()
    if len(text) <= 512 and _REFERENCE.fullmatch(text):
        return text
    hint = "write one such as docker.io/library/python:3.12-slim"
    if re.match(r"[a-z-]+:(//|/)|(oci|dir|docker-archive|oci-archive):", text):
        hint = "leave out what stands before the registry; a file is brought by `hutch podman load`"
    raise ValueError(f"Environment(base={value!r:.80}) is not the name of an image: {hint}")


def _check_python(python: Any, base: str) -> None:
    if python is None:
        return
    if not isinstance(python, str) or not re.fullmatch(r"3(\.\d+){0,2}", python.strip()):
        raise ValueError(f"Environment(python={python!r:.80}): write a version, such as '3.12'")
    have = platform.python_version()
    wanted = python.strip()
    if base:  # its version is known once it is looked at
        if "." not in wanted:
            raise ValueError(f"Environment(python={wanted!r}, base=...): write it as '3.12'")
        return
    if have != wanted and not have.startswith(wanted + "."):
        raise ValueError(
            f"Environment(python={wanted!r}): the sandbox has Python {have}, as this interpreter; "
            f"call from Python {wanted}"
        )


def _url(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} takes a URL, not {type(value).__name__}")
    text = value.strip()
    if not re.fullmatch(r"https?://[^\s\"'\\`<>]+", text) or not text.isascii():
        raise ValueError(f"{name}={_public(text)!r:.120} is not a URL that begins with https://")
    return text


def _link(value: Any) -> str:
    """A page, or a directory that is there."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(text, str) and "://" in text:
        return _url("find_links", text)
    if not isinstance(text, str) or not text:
        raise TypeError(f"find_links takes URLs and directories, not {value!r:.80}")
    place = os.path.realpath(os.path.expanduser(text))
    if not os.path.isdir(place):
        raise ValueError(f"find_links={text!r}: there is no such directory")
    return place


def _constraints(value: Any) -> tuple[str, ...]:
    from hutch._options.requirements import normalize

    is_file = isinstance(value, os.PathLike) or (
        isinstance(value, str) and (value.endswith(".txt") or "/" in value)
    )
    if is_file:
        from hutch._options.requirements_file import constraints_of

        return constraints_of(os.fspath(value))
    return normalize(_items(value))


def _lock_text(path: Any) -> str:
    place = os.path.expanduser(os.fspath(path))
    with open(place, encoding="utf-8") as file:
        text = file.read(_MOST_LOCK + 1)
    if len(text) > _MOST_LOCK:
        raise ValueError(f"the lock {place} is larger than {_MOST_LOCK >> 20} MiB")
    from hutch._options.lock import checked

    return checked(text, place)
