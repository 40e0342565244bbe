"""Dependencies: what is no requirement is refused before any process starts."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

import hutch
from hutch import sandbox

NOT_REQUIREMENTS = [
    "--index-url=http://evil.example",
    "-r /etc/passwd",
    "-e .",
    "-c constraints.txt",
    "--config-settings=x",
    "pip --index-url=http://evil.example",
    "./x.whl",
    "/tmp/x.whl",
    "../package",
    "file:///tmp/x.whl",
    "git+ssh://host/repo",
    "hg+http://host/repo@--config=hooks.pre-x=true",
    "http://host/x.whl",
    "pkg @ file:///tmp/x.whl",
    "pkg @ git+https://host/repo",
    "pkg @ http://host/x.whl",
    "numpy\n--index-url=http://evil.example",
    "numpy\x00evil",
    "num\u2010py",
    "\u0440andas",
    "n" * 10_240,
    "",
    "numpy; __import__('os').system('true')",
    "$(true)",
    "`true`",
]


def nothing() -> None:
    pass


@pytest.mark.parametrize("text", NOT_REQUIREMENTS, ids=lambda text: repr(text)[:40])
def test_what_is_no_requirement_is_refused_at_once(text: str) -> None:
    begin = time.monotonic()
    with pytest.raises((ValueError, hutch.SandboxError)):
        sandbox(dependencies=[text])(nothing)()
    assert time.monotonic() - begin < 10


def test_spellings_of_one_requirement_are_one_environment() -> None:
    @sandbox(dependencies=["Six >= 1.0", "iniconfig"])
    def one() -> str:
        import six

        return str(six.__version__)

    @sandbox(dependencies=["iniconfig", "six>=1.0"])
    def two() -> str:
        import six

        return str(six.__version__)

    assert one() == two()
    assert len({one.run().worker_id, two.run().worker_id}) <= 2


@pytest.mark.parametrize("name", ["-rm", "a/b", "..", "x\x00y", "x\ny", "y" * 10_240])
def test_odd_names_are_refused_or_harmless(name: str) -> None:
    with pytest.raises((ValueError, TypeError, hutch.SandboxError)):
        hutch.run("print(1)", files={name + "/../../../etc/passwd": "x"}).unwrap()


@pytest.mark.parametrize(
    "setting",
    [
        {"memory_mb": -1},
        {"memory_mb": 2**63},
        {"memory_mb": "much"},
        {"pids": 0},
        {"disk_mb": -5},
        {"result_mb": -1},
        {"output_mb": -1},
        {"cpus": -1},
        {"cpus": float("nan")},
        {"cpu_sec": -1},
        {"queue_sec": float("nan")},
        {"pids": 2**40},
        {"unknown_keyword": 1},
        {"isolation": "none"},
        {"env": {"A=B": "x"}},
        {"env": {"A": "x\x00y"}},
    ],
    ids=str,
)
def test_limits_that_are_none_are_refused_before_a_call(setting: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError)):
        sandbox(**setting)(nothing)()  # type: ignore[call-overload]


ROOT = Path(__file__).parent.parent.parent


def test_workers_are_pinned_by_the_images_id() -> None:
    """A worker is made of what its tag meant when it was looked up, and never of what is pulled for
    it: only a base that the caller names is, before it is looked at.
    """
    worker = (ROOT / "pool" / "worker.cc").read_text()
    assert re.search(r"launch\.image = \*image;\s+podman\.Start\(podman\.Create\(", worker)
    pulling = [
        path.name
        for folder in ("pool", "agent", "client", "bindings")
        for path in (ROOT / folder).rglob("*.cc")
        if re.search(r"\bPullImage\(|images/pull", path.read_text())
    ]
    assert sorted(pulling) == ["base_image.cc", "base_image_test.cc", "podman.cc"]


def test_a_package_runs_nothing_of_its_own_accord() -> None:
    """No site, so no .pth, sitecustomize or usercustomize; the library before the packages."""

    @sandbox(dependencies=["six"])
    def look() -> list[object]:
        import sys

        names = [path for path in sys.path if path.startswith("/opt/")]
        library = [at for at, path in enumerate(names) if path.startswith("/opt/python/")]
        packages = [at for at, path in enumerate(names) if path == "/opt/env"]
        import json

        import six

        return [
            sys.flags.isolated,
            sys.flags.no_site,
            "sitecustomize" in sys.modules,
            max(library) < min(packages),
            json.__file__.startswith("/opt/python/"),
            six.__file__.startswith("/opt/env/"),
        ]

    assert look() == [1, 1, False, True, True, True]
