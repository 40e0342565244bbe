# SPDX-License-Identifier: Apache-2.0
"""Environments against the real installer: built once, refused clearly, and arrays both ways."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import pytest

import hutch
from hutch import sandbox

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")

PANDAS = ["pandas", "numpy"]


@sandbox(dependencies=["numpy", "Pandas"], timeout_sec=60)
def identity(x: Any) -> Any:
    return x


def test_one_set_however_spelled_is_one_environment() -> None:
    identity(1)
    digests = set()
    for spelled in (PANDAS, ["PANDAS", " numpy "], ("numpy", "pandas", "numpy")):
        function = identity.options(dependencies=spelled)
        assert function.run(1).ok
        digests.add(function._resolved().request.name)
    assert len(digests) == 1


def test_arrays_and_frames_arrive_equal_with_dtype_index_and_nan() -> None:
    frame = pd.DataFrame(
        {"a": [1.5, float("nan")], "b": ["x", None], "c": pd.to_datetime(["2020-01-01", None])},
        index=pd.Index(["r", "s"], name="rows"),
    )
    pd.testing.assert_frame_equal(identity(frame), frame)
    for array in (np.arange(10, dtype="int16").reshape(2, 5), np.random.rand(300, 300)):
        got = identity(array)
        assert got.dtype == array.dtype and (got == array).all() and got.flags.writeable


def test_a_large_array_is_private_on_both_sides() -> None:
    @sandbox(dependencies=PANDAS, timeout_sec=60)
    def overwrite(x: Any) -> Any:
        x[:] = 7
        return x

    array = np.zeros(1_000_000)
    got = overwrite(array)
    assert (array == 0).all() and (got == 7).all()
    got[0] = 1


def test_a_captured_module_works_inside_when_it_is_a_dependency() -> None:
    @sandbox(dependencies=PANDAS, timeout_sec=60)
    def total(rows: list[dict[str, int]]) -> dict[str, int]:
        frame = pd.DataFrame(rows)
        return {str(name): int(value) for name, value in frame.sum().items()}

    assert total([{"a": 1}, {"a": 2}]) == {"a": 3}


def test_a_captured_module_that_is_no_dependency_is_an_error_before_sending() -> None:
    @sandbox
    def total() -> float:
        return float(np.zeros(3).sum())

    with pytest.raises(hutch.DependencyInstallError, match="numpy") as caught:
        total()
    assert caught.value.requirement == "numpy"


def test_a_module_missing_inside_is_hinted_at() -> None:
    @sandbox
    def use() -> None:
        import sklearn  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: F401

    with pytest.raises(ImportError) as caught:
        use()
    assert isinstance(caught.value, hutch.SandboxExecutionError)
    assert "scikit-learn" in caught.value.hint


def test_all_that_importing_reads_has_bytecode() -> None:
    @sandbox(dependencies=["requests"], disable_cache=True, timeout_sec=60)
    def look() -> tuple[int, list[str]]:
        import os
        import sys

        import requests  # noqa: F401

        specs = [getattr(module, "__spec__", None) for module in list(sys.modules.values())]
        read = [s for s in specs if s and (s.origin or "").startswith("/opt/env/") and s.cached]
        return len(read), [s.name for s in read if not os.path.exists(s.cached)]

    count, without = look()
    assert count > 50 and without == []


def test_a_misspelt_package_is_named_by_the_resolver() -> None:
    function = sandbox(lambda: 1, dependencies=["pandsa-is-misspelt-here"])
    with pytest.raises(hutch.DependencyInstallError, match="pandsa-is-misspelt-here") as caught:
        function()
    assert caught.value.requirement == "pandsa-is-misspelt-here"
    assert caught.value.log
    assert caught.value.outcome is not None and caught.value.outcome.status == "fault"
    assert caught.value.outcome.safe_to_retry


def test_packages_that_conflict_are_reported() -> None:
    function = sandbox(lambda: 1, dependencies=["idna==3.7", "idna==3.6"])
    with pytest.raises(hutch.DependencyInstallError, match="idna"):
        function()


def test_callers_that_ask_at_once_share_one_build() -> None:
    function = sandbox(lambda: __import__("idna").__version__, dependencies=["idna==3.7"])
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        versions = list(threads.map(lambda _: function(), range(4)))
    assert versions == ["3.7"] * 4


def test_inline_metadata_builds_an_environment() -> None:
    source = "# /// script\n# dependencies = ['idna==3.7']\n# ///\nimport idna\nprint(idna)\n"
    assert "idna" in hutch.run(source, dependencies="inline").stdout
    outcome = hutch.run(source)
    assert outcome.error is not None and "inline" in outcome.error.hint


def test_a_dead_network_is_blamed_and_not_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")

    @sandbox(dependencies=["six"], disable_cache=True)
    def never() -> None: ...

    with pytest.raises(hutch.DependencyInstallError) as raised:
        never()
    assert "network" in raised.value.hint


def test_a_package_without_a_wheel_says_how_to_allow_a_build() -> None:
    @sandbox(dependencies=["docopt"])
    def never() -> None: ...

    with pytest.raises(hutch.DependencyInstallError) as raised:
        never()
    assert "wheel" in str(raised.value) and "allow_sdists=True" in raised.value.hint

    @sandbox(environment=hutch.Environment(dependencies=["docopt"], allow_sdists=True))
    def version() -> str:
        import docopt

        return str(docopt.__version__)

    assert version()[0].isdigit()


@pytest.mark.parametrize("isolation", ["cell", "shared", "container"])
def test_a_package_that_keeps_its_database_open_works(isolation: Any) -> None:
    """pyproj reads proj.db, which importing it has opened, ahead of calls."""

    @sandbox(dependencies=["pyproj"], isolation=isolation, timeout_sec=60)
    def name() -> tuple[bool, str]:
        import sys

        ahead = "pyproj" in sys.modules
        import pyproj  # type: ignore[import-not-found,import-untyped,unused-ignore]

        return ahead, str(pyproj.CRS(4326).name)

    for _ in range(2):
        assert name() == (True, "WGS 84")
