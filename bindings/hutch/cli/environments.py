# SPDX-License-Identifier: Apache-2.0
"""`hutch env lock` and `hutch env export`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from hutch._options.environment import Environment


def wanted(options: argparse.Namespace, dependencies: Iterable[str]) -> Environment:
    """What `--environment`, `--base` and `--python` ask for. Raises ValueError."""
    on_base = Environment(dependencies, base=options.base, python=options.python)
    if not options.environment:
        return on_base
    environment = Environment.from_path(options.environment)
    environment.base, environment.python = on_base.base, on_base.python
    return environment


def lock(options: argparse.Namespace) -> int:
    """Requirements with versions and hashes, built and seen to load, on stdout or in a file."""
    from hutch._calls.target import TextTarget
    from hutch._connect.connection import on_pool
    from hutch._options.options import NORMAL

    if bool(options.environment) == bool(options.digest):
        raise ValueError("hutch env lock: name at least one REQUIREMENT, or --environment PATH")
    environment = wanted(options, options.digest)
    target = TextTarget("", "lock", NORMAL.changed({"environment": environment}), "")
    prepared = on_pool(target.request, lambda _, pool: pool)
    text = prepared.lock
    if options.json:
        text = json.dumps({"digest": prepared.digest, "lock": text}) + "\n"
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write(text)
    else:
        sys.stdout.write(text)
    return 0


def export(options: argparse.Namespace) -> int:
    """An OCI image of base and packages, for other machines: an archive for `podman load`."""
    from hutch import _core, _status

    if len(options.digest) != 1 or not options.output:
        raise ValueError("hutch env export: name one DIGEST, and --output FILE")
    known = {str(item.get("digest", "")): item for item in _status.environments()}
    digest = whole_digest(options.digest[0], list(known))
    if digest not in known:
        raise ValueError(
            f"no digest of an environment begins with {options.digest[0]!r}; `hutch env` lists them"
        )
    paths = _core.paths()
    tree = os.path.join(str(paths["state_dir"]), "environments", digest, "tree")
    base = str(known[digest]["base"])
    if len(base) == 32:  # derived from an interpreter; else an image's own id
        base = f"localhost/hutch-base:{base}"
    image = f"localhost/hutch-environment:{digest[:32]}"
    container = f"hutch-export-{os.getpid()}"
    try:
        _podman("create", "--name", container, "--network", "none", base)
        _podman("cp", f"{tree}/.", f"{container}:/opt/env")
        change = ["--change", "ENV PYTHONPATH=/opt/env", "--change", "WORKDIR /"]
        _podman("commit", "--quiet", *change, container, image)
        with open(options.output, "wb") as file:
            _podman("save", "--format", "oci-archive", image, out=file)
    finally:
        _podman("rm", "--force", "--ignore", container, check=False)
        _podman("rmi", "--force", image, check=False)
    fields = {"image": image, "file": options.output, "bytes": os.path.getsize(options.output)}
    if options.json:
        print(json.dumps(fields))
    else:
        print(f"{options.output}: {image}, {fields['bytes'] / 1e6:.1f} MB; podman load -i it")
    return 0


def _podman(*arguments: str, out: Any = subprocess.DEVNULL, check: bool = True) -> None:
    from hutch._connect import launcher

    done = subprocess.run(
        [launcher.PROGRAM, "--podman", "--", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.PIPE,
        check=False,
    )
    if check and done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise OSError(f"podman {arguments[0]} failed: {said[-1] if said else done.returncode}")


def whole_digest(start: str, known: list[str]) -> str:
    """The one that begins so."""
    found = [digest for digest in known if digest.startswith(start)]
    return found[0] if len(found) == 1 else start
