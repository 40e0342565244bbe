# SPDX-License-Identifier: Apache-2.0
"""Checks each wheel of a directory, and prints its size: `audit.py DIRECTORY`. Exits 1 at the first
that does not keep what its name says.

auditwheel: it needs no glibc and no library that its platform does not promise. abi3audit: what is
for every Python uses only what each of them has.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

MOST_BYTES = 12 << 20  # of what one `pip install` downloads of ours


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"wheels: {' '.join(command)}:\n{done.stdout}{done.stderr}")
    return " ".join((done.stdout + done.stderr).split())


def glibc_needed(wheel: Path) -> int:
    """The N of the oldest glibc 2.N on which it runs."""
    said = run("auditwheel", "show", str(wheel))
    found = re.search(r'platform tag: "manylinux_2_(\d+)_', said)
    if not found:
        sys.exit(f"wheels: {wheel.name} is for no manylinux: {said}")
    return int(found[1])


def check(wheel: Path) -> None:
    promised = re.search(r"manylinux_2_(\d+)_", wheel.name)
    assert promised
    needed = glibc_needed(wheel)
    if needed > int(promised[1]):
        sys.exit(f"wheels: {wheel.name} needs glibc 2.{needed}")
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as place:
        for name in archive.namelist():
            if name.endswith(".abi3.so"):
                run("abi3audit", "--strict", "--assume-minimum-abi3", "3.10",
                    archive.extract(name, place))  # fmt: skip
    print(f"wheels: {wheel.stat().st_size / 1e6:5.2f} MB  glibc 2.{needed:<3} {wheel.name}")


def main(directory: Path) -> None:
    wheels = sorted(directory.glob("*.whl"))
    for wheel in wheels:
        check(wheel)
    for runtime in directory.glob("hutch_runtime-*.whl"):
        architecture = runtime.stem.partition("manylinux_2_28_")[2]
        of_it = [w.stat().st_size for w in directory.glob(f"hutch-*_{architecture}.whl")]
        if runtime.stat().st_size + max(of_it) > MOST_BYTES:
            sys.exit(f"wheels: what is installed on {architecture} is larger than 12 MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
