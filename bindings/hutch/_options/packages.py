# SPDX-License-Identifier: Apache-2.0
"""What the agent is sent of the packages that a sandbox has, and where they come from.

Credentials in the addresses of indexes become a netrc, which the step that downloads sees alone: no
digest, log or message has them. Pure but for the caller's settings that are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from hutch._options.index import add_own, settings

if TYPE_CHECKING:
    from hutch import _core
    from hutch._options.options import Options


_ADDRESSES = ("index_url", "extra_index_urls", "find_links")


def fields(options: Options) -> _core.PackageSpec:
    """Those of `PoolSpec` that say what is installed. Raises ValueError."""
    environment = options.environment
    dependencies = options.dependencies or ()
    lock = environment.lock if environment else ""
    node = options.node_dependencies
    fetched = bool(dependencies or lock or node)
    index = settings() if fetched else {}
    if fetched and environment is not None:
        if environment.index_url:  # another index's extra ones are not wanted then
            index.update(index_url=environment.index_url, extra_index_urls="")
        if environment.extra_index_urls:
            index["extra_index_urls"] = " ".join(environment.extra_index_urls)
        pages = [item for item in environment.find_links if "://" in item]
        index["find_links"] = " ".join(pages)
    credentials: dict[str, tuple[str, str]] = {}
    for name in _ADDRESSES:
        if index.get(name):
            index[name] = " ".join(_bare(url, credentials) for url in index[name].split())
    sdists = options.allow_sdists and fetched
    if not sdists:
        add_own(
            " ".join([*(index.get(name, "") for name in _ADDRESSES), *dependencies, lock]),
            credentials,
        )
    index["netrc"] = _netrc(credentials)
    if node:
        _add_node(options, index, sdists)
    if sdists and credentials:
        raise ValueError(
            f"allow_sdists=True together with credentials for {', '.join(credentials)}: a "
            "package's build script could read them; build that wheel once, and give its directory "
            "as find_links="
        )
    return {
        "requirements": list(dependencies),
        "index": index,
        "allow_sdists": sdists,
        "allow_urls": bool(environment and environment.allow_urls and dependencies),
        "constraints": list(environment.constraints) if environment and dependencies else [],
        "lock": lock,
        "base": environment.base if environment else "",
        "node_requirements": list(node),
    }


def _add_node(options: Options, index: dict[str, str], sdists: bool) -> None:
    """Build scripts see no credentials: as of a netrc, there are none then."""
    from hutch._options import node_packages

    if options.environment is not None and options.environment.venv:
        raise ValueError(
            "node_dependencies= does not go with a virtual environment, to which nothing is added: "
            "give dependencies=, a requirements.txt or a lock"
        )
    index.update(node_packages.settings())
    if sdists:
        index["npm_credentials"] = ""


def _bare(url: str, credentials: dict[str, tuple[str, str]]) -> str:
    """Without user and password, which go to `credentials` by host."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    user, _, host = parts.netloc.rpartition("@")
    login, _, password = user.partition(":")
    known = credentials.setdefault(parts.hostname or host, (unquote(login), unquote(password)))
    if known != (unquote(login), unquote(password)):
        raise ValueError(f"two addresses of {parts.hostname} have different credentials")
    return urlunsplit(parts._replace(netloc=host))


def _netrc(credentials: dict[str, tuple[str, str]]) -> str:
    lines = []
    for host, (login, password) in sorted(credentials.items()):
        for word in (login, password):
            if not word.isprintable() or any(c in word for c in " \"'\\#"):
                raise ValueError(
                    f"the credentials for {host} hold a character that a netrc cannot have"
                )
        secret = f" password {password}" if password else ""
        lines.append(f"machine {host} login {login}{secret}\n")
    return "".join(lines)
