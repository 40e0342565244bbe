# SPDX-License-Identifier: Apache-2.0
"""What the host's containers.conf asks of Podman that `hutch doctor` warns of."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_MOST = 1 << 20  # bytes of a file
_SYSTEM = ("/usr/share/containers/containers.conf", "/etc/containers/containers.conf")
# Options of slirp4netns and pasta by which a container reaches what listens on the host's loopback.
_OPEN = ("allow_host_loopback=true", "--map-gw", "--map-host-loopback")
_FORWARDED = {"-T": "--tcp-ns", "-U": "--udp-ns"}


def opened_loopback(home: str) -> Iterator[tuple[str, str]]:
    """(option, file) for each, of the user with that home."""
    for file in _files(home):
        settings = _read(file)
        network, engine = settings.get("network"), settings.get("engine")
        options = []
        if isinstance(network, dict):
            options += _words(network.get("pasta_options"))
        if isinstance(engine, dict):
            options += _words(engine.get("network_cmd_options"))
        for option in _opening(options):
            yield option, str(file)


def _files(home: str) -> Iterator[Path]:
    own = os.environ.get("XDG_CONFIG_HOME", "") if home == os.environ.get("HOME") else ""
    above = Path(own if own.startswith("/") else f"{home}/.config")
    for name in (*_SYSTEM, above / "containers" / "containers.conf"):
        yield Path(name)
        yield from sorted(Path(f"{name}.d").glob("*.conf"))


def _read(file: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        # Its owner may have made it something that never ends, or that nobody fills.
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                return {}
            found: dict[str, Any] = tomllib.loads(opened.read(_MOST).decode())
            return found
    except (OSError, RecursionError, ValueError):
        return {}  # Podman itself says what is wrong with it


def _words(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _opening(options: list[str]) -> Iterator[str]:
    for option, value in zip(options, [*options[1:], ""]):
        name, _, given = option.partition("=")
        if option in _OPEN or name in _OPEN:
            yield option
        elif name in (*_FORWARDED, *_FORWARDED.values()) and (given or value) != "none":
            yield f"{option} {value}".strip() if not given else option
