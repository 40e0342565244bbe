# SPDX-License-Identifier: Apache-2.0
"""Puts what scripts/wheels/compile staged into wheels: `assemble.py DIRECTORY ARCHITECTURE...`.

For each architecture one of `hutch-runtime`, which any Python takes (the programs, and what runs in
containers), and for each Python one of `hutch` (the package, and `_core` for that Python), which
demands the runtime of its own version. Both put their files into the package `hutch`, where an
installation from source has all of them. The same files give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from libraries import bill, libraries
from scikit_build_core.build import prepare_metadata_for_build_wheel

ROOT = Path(__file__).parents[2]
WORK = ROOT / "build" / "wheels"

RUNTIME_METADATA = """\
Metadata-Version: 2.1
Name: hutch-runtime
Version: {version}
Summary: The programs of Hutch, and what runs in its containers (with OpenSSL {openssl})
License: Apache-2.0
Requires-Python: >=3.10

What `hutch` of the same version runs: its agent, and the processes of its containers with their
files. It is of no use alone.
"""


def hashed(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def files_below(root: Path) -> Iterator[tuple[str, bytes, bool]]:
    """(path below the root, content, whether it is a program), in the order of their names."""
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(root).as_posix(), path.read_bytes(), os.access(path, os.X_OK)


class Wheel:
    """A wheel being written: `add` files, then `close`."""

    def __init__(self, directory: Path, name: str, version: str, tag: str) -> None:
        self.path = directory / f"{name}-{version}-{tag}.whl"
        self._info = f"{name}-{version}.dist-info"
        self._zip = zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self._record: list[str] = []
        wheel = f"Wheel-Version: 1.0\nGenerator: hutch\nRoot-Is-Purelib: false\nTag: {tag}\n"
        self.add_info("WHEEL", wheel.encode())
        self.add_info(f"sboms/{name}.cdx.json", bill(name, version))
        for library in libraries(name):
            self.add_info(f"licenses/{library.name}.txt", library.license_file.read_bytes())

    def add(self, path: str, data: bytes, program: bool = False) -> None:
        self._record.append(f"{path},{hashed(data)},{len(data)}\n")
        self._write(path, data, 0o755 if program else 0o644)

    def add_info(self, path: str, data: bytes) -> None:
        self.add(f"{self._info}/{path}", data)

    def close(self) -> None:
        record = f"{self._info}/RECORD"
        self._write(record, "".join([*self._record, f"{record},,\n"]).encode(), 0o644)
        self._zip.close()

    def _write(self, path: str, data: bytes, mode: int) -> None:
        entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
        entry.external_attr = (0o100000 | mode) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self._zip.writestr(entry, data, compresslevel=9)


def described() -> tuple[str, dict[str, bytes]]:
    """Hutch's version, and the files that describe it, as an installation from source has them."""
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made) / prepare_metadata_for_build_wheel(made)
        version = directory.name.removesuffix(".dist-info").split("-")[1]
        files = {path: data for path, data, _ in files_below(directory)}
    head, _, text = files["METADATA"].decode().partition("\n\n")
    head += f"\nRequires-Dist: hutch-runtime=={version}"
    files["METADATA"] = f"{head}\n\n{text}".encode()
    return version, {path: files[path] for path in files if path not in ("WHEEL", "RECORD")}


def make_runtime(directory: Path, version: str, architecture: str) -> None:
    tag = f"py3-none-manylinux_2_28_{architecture}"
    wheel = Wheel(directory, "hutch_runtime", version, tag)
    openssl = (WORK / "openssl" / "debian" / "version").read_text().strip()
    wheel.add_info("METADATA", RUNTIME_METADATA.format(version=version, openssl=openssl).encode())
    wheel.add_info("licenses/LICENSE", (ROOT / "LICENSE").read_bytes())
    for path, data, program in files_below(WORK / "stage" / architecture / "runtime"):
        wheel.add(path, data, program)
    wheel.close()


def make_package(directory: Path, staged: Path, version: str, about: dict[str, bytes]) -> None:
    python = "cp" + staged.name.replace(".", "")
    tag = f"{python}-{python}-manylinux_2_28_{staged.parent.name}"
    wheel = Wheel(directory, "hutch", version, tag)
    for path, data in about.items():
        wheel.add_info(path, data)
    for path, data, _ in files_below(ROOT / "bindings" / "hutch"):
        wheel.add(f"hutch/{path}", data)
    for path, data, _ in files_below(staged):
        wheel.add(path, data)
    wheel.close()


def main(directory: Path, architectures: list[str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    version, about = described()
    for architecture in architectures:
        make_runtime(directory, version, architecture)
        for staged in sorted((WORK / "stage" / architecture).glob("3.*")):
            make_package(directory, staged, version, about)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
