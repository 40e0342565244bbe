# SPDX-License-Identifier: Apache-2.0
"""What others wrote of the machine code in each wheel: its licenses, and its bill of materials.

All of it is linked statically. The bill is CycloneDX's JSON, in the place that PEP 770 gives it.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import ziglang

ROOT = Path(__file__).parents[2]
WORK = ROOT / "build" / "wheels"
ZIG = Path(ziglang.__file__).parent
DOCUMENTS = Path("/usr/share/doc")


@dataclass(frozen=True)
class Library:
    """One that is linked. `version` is its authors'; `purl` has that of the sources we took."""

    name: str
    version: str
    purl: str
    license: str  # an expression of SPDX
    license_file: Path


def _found(pattern: str, file: Path) -> str:
    found = re.search(pattern, file.read_text())
    assert found, f"{file} has no {pattern}"
    return found[1]


def _of_debian(name: str, source: str, version: str, license: str, file: Path) -> Library:
    plain = re.match(r"(?:\d+:)?([\d.]+)", version)
    assert plain, version
    purl = f"pkg:deb/debian/{source}@{quote(version, safe='~')}?arch=source"
    return Library(name, plain[1], purl, license, file)


def _installed(name: str, source: str, package: str, license: str) -> Library:
    """Of whose package of this machine the headers were taken."""
    command = ["dpkg-query", "-W", "-f", "${Version}", package]
    version = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return _of_debian(name, source, version, license, DOCUMENTS / package / "copyright")


def _fetched(name: str, license: str, file: str) -> Library:
    """Whose sources scripts/wheels/sources fetched."""
    version = (WORK / name / "debian" / "version").read_text().strip()
    return _of_debian(name, name, version, license, WORK / name / file)


def libraries(wheel: str) -> list[Library]:
    """Of "hutch" or "hutch_runtime", by name."""
    number = int(_found(r"define _LIBCPP_VERSION (\d+)", ZIG / "lib/libcxx/include/__config"))
    llvm = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    zig = importlib.metadata.version("ziglang")
    of_both = [
        _installed("cereal", "cereal", "libcereal-dev", "BSD-3-Clause"),
        Library(
            "llvm-libcxx",
            llvm,
            f"pkg:generic/llvm-libcxx@{llvm}",
            "Apache-2.0 WITH LLVM-exception",
            ZIG / "lib/libcxx/LICENSE.TXT",
        ),
        Library("zig-compiler-rt", zig, f"pkg:pypi/ziglang@{zig}", "MIT", ZIG / "LICENSE"),
    ]
    if wheel == "hutch":
        about = next(WORK.glob("tools/lib/python3*/site-packages/pybind11-*"))
        pybind = about.name.removeprefix("pybind11-").removesuffix(".dist-info")
        license_file = about / "licenses" / "LICENSE"
        own = [
            _installed("msgpack", "msgpack-cxx", "libmsgpack-cxx-dev", "BSL-1.0"),
            Library(
                "pybind11", pybind, f"pkg:pypi/pybind11@{pybind}", "BSD-3-Clause", license_file
            ),
        ]
    else:
        sources = ZIG / "lib/libc/musl"
        musl = _found(r'VERSION "([\d.]+)"', sources / "src/internal/version.h")
        own = [
            _fetched("cpp-httplib", "MIT", "LICENSE"),
            Library("musl", musl, f"pkg:generic/musl@{musl}", "MIT", sources / "COPYRIGHT"),
            _installed("nlohmann-json", "nlohmann-json3", "nlohmann-json3-dev", "MIT"),
            _fetched("openssl", "Apache-2.0", "LICENSE.txt"),
            _installed("tomlplusplus", "tomlplusplus", "libtomlplusplus-dev", "MIT"),
        ]
    return sorted([*of_both, *own], key=lambda library: library.name)


def bill(wheel: str, version: str) -> bytes:
    """The bill of materials of a wheel; the same for the same libraries."""
    project = wheel.replace("_", "-")
    ours = f"pkg:pypi/{project}@{version}"
    linked = libraries(wheel)
    made = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": ours,
                "name": project,
                "version": version,
                "purl": ours,
            }
        },
        "components": [
            {
                "type": "library",
                "bom-ref": library.purl,
                "name": library.name,
                "version": library.version,
                "purl": library.purl,
                "licenses": [{"expression": library.license}],
            }
            for library in linked
        ],
        "dependencies": [{"ref": ours, "dependsOn": [library.purl for library in linked]}],
    }
    return json.dumps(made, indent=2).encode() + b"\n"
