# SPDX-License-Identifier: Apache-2.0
"""Checks each wheel of a directory, and prints its size: `audit.py DIRECTORY`. Exits 1 at the first
that does not keep what its name says.

auditwheel: it needs no glibc and no library that its platform does not promise. abi3audit: what is
for every Python uses only what each of them has. The bill of materials names each library whose
license is in the wheel, in the version that the machine code says of itself where it says one.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

SAY_THEIR_VERSION = {"cpp-httplib", "openssl"}  # in the agent
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


def check_bill(wheel: Path, archive: zipfile.ZipFile) -> None:
    files = {name: archive.read(name) for name in archive.namelist()}
    name = wheel.name.partition("-")[0]
    bills = [name_of for name_of in files if name_of.endswith(f".dist-info/sboms/{name}.cdx.json")]
    if len(bills) != 1:
        sys.exit(f"wheels: {wheel.name} has no bill of materials")
    bill = json.loads(files[bills[0]])
    listed = {part["name"]: part["version"] for part in bill["components"] if part["purl"]}
    licensed = {found[1] for n in files if (found := re.search(r"/licenses/([a-z0-9-]+)\.txt$", n))}
    if (bill["bomFormat"], set(listed)) != ("CycloneDX", licensed) or not all(listed.values()):
        sys.exit(f"wheels: the bill of materials of {wheel.name} is {listed}, not {licensed}")
    said = files.get("hutch/_runtime/hutch-agent", b"")
    for library in SAY_THEIR_VERSION & listed.keys():
        if listed[library].encode() not in said:
            sys.exit(f"wheels: {wheel.name} is not linked with {library} {listed[library]}")


def check(wheel: Path) -> None:
    promised = re.search(r"manylinux_2_(\d+)_", wheel.name)
    assert promised
    needed = glibc_needed(wheel)
    if needed > int(promised[1]):
        sys.exit(f"wheels: {wheel.name} needs glibc 2.{needed}")
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as place:
        check_bill(wheel, archive)
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
