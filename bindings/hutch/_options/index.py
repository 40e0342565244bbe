# SPDX-License-Identifier: Apache-2.0
"""Where packages come from: the caller's own pip and uv settings, for builds only.

Read from the environment and the configuration files of both; the environment wins, and uv's names
win over pip's. Credentials in an address travel to the build's fetch step and nowhere else.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any

_HOST = re.compile(r"https?://([A-Za-z0-9.-]+)")
_PUBLIC = "https://pypi.org/simple"  # the installer's own default


def settings(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What `PoolSpec["index"]` takes: every key is there, "" where nothing is set."""
    env = os.environ if environ is None else environ
    pip, uv = _pip(env), _uv(env)
    return {
        "index_url": _first(env, "UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
        or uv.get("index-url", "")
        or pip.get("index-url", ""),
        "extra_index_urls": " ".join(
            (
                _first(env, "UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL")
                or uv.get("extra-index-url", "")
                or pip.get("extra-index-url", "")
            ).split()
        ),
        "http_proxy": _first(env, "http_proxy", "HTTP_PROXY", "PIP_PROXY") or pip.get("proxy", ""),
        "https_proxy": _first(env, "https_proxy", "HTTPS_PROXY", "PIP_PROXY")
        or pip.get("proxy", ""),
        "no_proxy": _first(env, "no_proxy", "NO_PROXY"),
        "ca_bundle": _text(
            _first(env, "SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE") or pip.get("cert", "")
        ),
    }


def refuse_private(environ: Mapping[str, str] | None = None) -> None:
    """Raises RequirementError where the caller's packages come from elsewhere than PyPI, or with
    credentials: a program that names its own dependencies could read what is private there.
    """
    found = settings(environ)
    urls = f"{found['index_url']} {found['extra_index_urls']}".split()
    private = [url for url in urls if url.rstrip("/") != _PUBLIC]
    if not private and not (urls and _has_login(_PUBLIC)):
        return
    from urllib.parse import urlsplit

    from hutch._errors import RequirementError

    hosts = ", ".join(sorted({urlsplit(url).hostname or "?" for url in private or urls}))
    raise RequirementError(
        "the program names its own dependencies, and they would be installed from your index at "
        f"{hosts}: it could name, and read, packages that are private there",
        hint="look at what it names, then allow it: --allow-private-index, or "
        "allow_private_index=True; or list dependencies= yourself",
    )


def _has_login(url: str) -> bool:
    credentials: dict[str, tuple[str, str]] = {}
    add_own(url, credentials)
    return bool(credentials)


def _first(env: Mapping[str, str], *names: str) -> str:
    return next((env[name] for name in names if env.get(name)), "")


def _text(path: str) -> str:
    """What the file holds; the builder cannot see the path."""
    if not path or not os.path.isfile(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _pip(env: Mapping[str, str]) -> dict[str, str]:
    """The settings of pip's files, the later ones over the earlier."""
    home, given = env.get("HOME", ""), env.get("PIP_CONFIG_FILE")
    if given == os.devnull:
        return {}
    config = env.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    places = [
        "/etc/pip.conf",
        os.path.join(home, ".pip", "pip.conf"),
        os.path.join(config, "pip", "pip.conf"),
        os.path.join(sys.prefix, "pip.conf"),
        given or "",
    ]
    places = [path for path in places if path and os.path.isfile(path)]
    if not places:
        return {}
    import configparser

    parser = configparser.RawConfigParser()
    found: dict[str, str] = {}
    for path in places:
        try:
            parser.read(path, encoding="utf-8")
        except (OSError, UnicodeDecodeError, configparser.Error):
            continue  # pip's own complaint is not ours to make
    for section in ("global", "install"):
        if parser.has_section(section):
            found.update({key.replace("_", "-"): text for key, text in parser.items(section)})
    return found


def _uv(env: Mapping[str, str]) -> dict[str, str]:
    if sys.version_info < (3, 11):
        return {}
    config = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME", ""), ".config")
    found: dict[str, str] = {}
    for path in (
        "/etc/uv/uv.toml",
        os.path.join(config, "uv", "uv.toml"),
        env.get("UV_CONFIG_FILE", ""),
    ):
        if path and os.path.isfile(path):
            if sys.version_info >= (3, 11):
                import tomllib
            else:
                import tomli as tomllib

            try:
                with open(path, "rb") as file:
                    found.update(_uv_keys(tomllib.load(file)))
            except (OSError, tomllib.TOMLDecodeError):
                continue
    return found


def _uv_keys(config: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    if isinstance(config.get("index-url"), str):
        found["index-url"] = config["index-url"]
    extra = config.get("extra-index-url")
    extras = [item for item in extra if isinstance(item, str)] if isinstance(extra, list) else []
    for item in config.get("index", []) if isinstance(config.get("index"), list) else []:
        if isinstance(item, dict) and isinstance(item.get("url"), str):
            if item.get("default"):
                found["index-url"] = item["url"]
            else:
                extras.append(item["url"])
    if extras:
        found["extra-index-url"] = " ".join(extras)
    return found


def add_own(text: str, credentials: dict[str, tuple[str, str]]) -> None:
    """What the caller's own netrc has for the hosts of the addresses in the text."""
    path = os.environ.get("NETRC") or os.path.expanduser("~/.netrc")
    if "://" not in text or not os.path.isfile(path):
        return
    import netrc

    try:
        known = netrc.netrc(path)
    except (OSError, netrc.NetrcParseError):
        return
    for host in sorted({match[1].lower() for match in re.finditer(_HOST, text)}):
        found = known.hosts.get(host)
        if found and host not in credentials:
            credentials[host] = (found[0], found[2] or "")
