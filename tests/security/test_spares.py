# SPDX-License-Identifier: Apache-2.0
"""A worker that was started ahead, with every environment in its container: it shows one of them.

What a package does when it is imported runs in the zygote, where a function of `setup=` runs too.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch import _status, sandbox

_memory_mb = itertools.count(300 + os.getpid() % 200)  # each a pool of its own


def on_a_spare(function: Any, **settings: Any) -> hutch.Outcome[Any]:
    """Runs it once, in a worker that was a spare until then."""
    deadline = time.monotonic() + 120
    while True:
        while not hutch.status()["spares"] and time.monotonic() < deadline:
            time.sleep(0.1)
        outcome = sandbox(function, memory_mb=next(_memory_mb), timeout_sec=60, **settings).run()
        if outcome.worker_id and "-spare-" in outcome.worker_id:
            return outcome
        assert time.monotonic() < deadline, f"no spare served: {outcome}"


@pytest.fixture(scope="module")
def other() -> str:
    """The digest of an environment that is not the one looked from."""

    @sandbox(dependencies=["iniconfig"])
    def version() -> str:
        import iniconfig

        return str(iniconfig.__file__)

    assert version() == "/opt/env/iniconfig/__init__.py"
    digests = [
        str(item["digest"])
        for item in _status.environments()
        if any(str(name).startswith("iniconfig==") for name in item["packages"])
        and len(item["packages"]) == 1
    ]
    assert digests
    return digests[0]


def attack(digest: str) -> Any:
    """A function for `setup=`: it leaves what it found where the calls find it."""

    def act() -> None:
        import builtins
        import ctypes
        import errno
        import json
        import os

        libc = ctypes.CDLL(None, use_errno=True)
        package = f"{digest}/tree/iniconfig/__init__.py"
        new_user, new_mounts = 0x10000000, 0x20000
        bind, recursive, move, detach = 4096, 16384, 8192, 2
        found: dict[str, Any] = {}

        def call(name: str, *arguments: Any) -> str:
            ctypes.set_errno(0)
            result = getattr(libc, name)(*arguments)
            return "done" if result == 0 else errno.errorcode[ctypes.get_errno()]

        def mount(source: bytes, target: bytes, kind: bytes, flags: int, data: bytes = b"") -> str:
            return call("mount", source, target, kind, ctypes.c_ulong(flags), data or None)

        def look() -> list[str]:
            """Where the other tree is to be seen."""
            places = ["/opt/environments", "/opt/env", "/opt/env/../environments", "/tmp/a"]
            places += ["/tmp/a/opt/environments", "/tmp/a/environments", "/tmp/b"]
            for pid in filter(str.isdigit, os.listdir("/proc")):
                roots = [f"/proc/{pid}/root", f"/proc/{pid}/cwd"]
                for descriptor in range(16):
                    roots.append(f"/proc/{pid}/fd/{descriptor}")
                places += roots + [f"{root}/opt/environments" for root in roots]
                places += [f"{root}/.." for root in roots]
            return [place for place in places if os.path.exists(f"{place}/{package}")]

        def below() -> dict[str, Any]:
            """In namespaces of its own, with every capability over them."""
            told: dict[str, Any] = {"unshare": call("unshare", new_user | new_mounts)}
            for kind in ("uid", "gid"):
                if kind == "gid":
                    open("/proc/self/setgroups", "w").write("deny")
                with open(f"/proc/self/{kind}_map", "w") as file:
                    file.write(f"{uid} {uid} 1")
            told["own mount"] = mount(b"x", b"/tmp", b"tmpfs", 0)
            os.mkdir("/tmp/a")
            os.mkdir("/tmp/b")
            for flags in (0, detach):
                for place in (b"/opt/environments", b"/opt/env", b"/opt", b"/"):
                    told[f"umount {place.decode()} {flags}"] = call("umount2", place, flags)
                    told[f"seen after {place.decode()} {flags}"] = look()
            told["move"] = mount(b"/opt/environments", b"/tmp/b", b"", move)
            for source in (b"/", b"/opt", b"/opt/environments"):
                for flags in (bind, bind | recursive):
                    told[f"bind {source.decode()} {flags}"] = mount(source, b"/tmp/a", b"", flags)
                    told[f"seen in {source.decode()} {flags}"] = look()
                    call("umount2", b"/tmp/a", detach)
                over = b"lowerdir=" + source + b":/tmp/b"
                told[f"overlay {source.decode()}"] = mount(b"o", b"/tmp/a", b"overlay", 0, over)
                told[f"seen over {source.decode()}"] = look()
                call("umount2", b"/tmp/a", detach)
            told["writable"] = mount(b"", b"/opt/env", b"", 32 | bind)
            try:
                open("/opt/env/owned", "w").close()
                told["written"] = True
            except OSError as error:
                told["written"] = errno.errorcode[error.errno or 0]
            return told

        uid = os.getuid()
        found["in the zygote"] = look()
        try:
            found["listed"] = os.listdir("/opt/environments")
        except OSError as error:
            found["listed"] = str(error)
        found["umount"] = call("umount2", b"/opt/environments", detach)
        found["capabilities"] = [
            line.split()[1] for line in open("/proc/self/status") if line.startswith("Cap")
        ]
        for name in ("root", "cwd", "ns/mnt", "fd"):
            try:
                os.stat(f"/proc/1/{name}/.")
                found[f"of the warden: {name}"] = "seen"
            except OSError as error:
                found[f"of the warden: {name}"] = errno.errorcode[error.errno or 0]
        found["descriptors"] = [
            target
            for name in os.listdir("/proc/self/fd")
            if os.path.lexists(f"/proc/self/fd/{name}")
            and (target := os.readlink(f"/proc/self/fd/{name}")).startswith("/opt/env")
        ]
        reading, writing = os.pipe()
        if os.fork() == 0:
            try:
                os.write(writing, json.dumps(below()).encode())
            except BaseException as error:
                os.write(writing, json.dumps({"failed": repr(error)}).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as file:
            found["below"] = json.load(file)
        os.wait()
        builtins.found = found  # type: ignore[attr-defined]

    return act


def tell() -> Any:
    import builtins
    import os

    seen = [line.split()[3:5] for line in open("/proc/self/mountinfo")]
    return builtins.found, os.listdir("/opt"), seen  # type: ignore[attr-defined]


@pytest.mark.wall("cover")
def test_a_hostile_package_sees_no_other_environment(other: str) -> None:
    found = on_a_spare(tell, dependencies=["six"], setup=attack(other)).unwrap()[0]
    below = found.pop("below")
    assert found.pop("in the zygote") == []
    assert found.pop("listed") == []
    assert found.pop("descriptors") == []
    assert found.pop("umount") == "EPERM"
    assert set(found.pop("capabilities")) == {"0" * 16}
    assert set(found.values()) <= {"EACCES", "EPERM", "ENOTDIR"}, found
    # With every capability over a namespace of its own, which any worker can have:
    assert below.pop("unshare") == below.pop("own mount") == "done"
    assert [key for key in below if key.startswith("seen") and below[key]] == []
    assert "done" not in {below[key] for key in below if key.startswith(("umount", "move"))}, below
    assert below["bind /opt 4096"] == below["bind / 4096"] == "EINVAL", "the cover is locked"
    assert below["written"] == "EROFS"
    assert below["writable"] == "EPERM"


def test_a_cell_sees_its_own_environment_alone(other: str) -> None:
    def tell(digest: str) -> Any:
        import os

        import six

        mounts = open("/proc/self/mountinfo").read()
        return (
            six.__file__,
            sorted({*os.listdir("/opt")} - {"node"}),
            digest in mounts,
            "environments" in mounts,
        )

    told = on_a_spare(lambda: tell(other), dependencies=["six"]).unwrap()
    assert told == ("/opt/env/six.py", ["env", "python"], False, False)


def test_one_without_packages_shows_none() -> None:
    def tell() -> Any:
        import os
        import sys

        return sorted({*os.listdir("/opt")} - {"node"}), [
            path for path in sys.path if path == "/opt/env"
        ]

    assert on_a_spare(tell).unwrap() == (["python"], [])


def test_one_whose_package_ends_the_zygote_shows_the_same_again(tmp_path: Path) -> None:
    """The next zygote of the same worker has the same view, and the caller's modules too."""
    (tmp_path / "quitter.py").write_text("import os\nos._exit(1)\n")
    (tmp_path / "carried.py").write_text("VALUE = 7\n")

    def tell() -> Any:
        import os

        import carried  # type: ignore[import-not-found]
        import six

        return six.__file__, carried.VALUE, sorted({*os.listdir("/opt")} - {"node"})

    modules = [tmp_path / "quitter.py", tmp_path / "carried.py"]
    with pytest.warns(UserWarning, match="quitter.*ended the process"):
        told = on_a_spare(tell, dependencies=["six"], modules=modules, preload=["quitter"]).unwrap()
    assert told == ("/opt/env/six.py", 7, ["env", "modules", "python"])
