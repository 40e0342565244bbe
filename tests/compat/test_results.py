"""Values of packages that come back as what they are."""

from __future__ import annotations

from typing import Any

import pytest

from hutch import sandbox

pl = pytest.importorskip("polars", reason="polars is not installed")


@pytest.mark.compat
@pytest.mark.parametrize("isolation", ["cell", "container", "gvisor"])
def test_frames_of_polars_travel_both_ways(isolation: str) -> None:
    @sandbox(dependencies=["polars", "pyarrow"], isolation=isolation, timeout_sec=60)
    def totals(frame: Any) -> pl.DataFrame:
        import polars as pl

        return frame.group_by("k").agg(pl.col("x").sum()).sort("k")

    frame = pl.DataFrame({"k": ["a", "b", "a"], "x": [1, 2, 3]})
    result = totals(frame)
    assert result.equals(pl.DataFrame({"k": ["a", "b"], "x": [4, 2]}))


@pytest.mark.compat
def test_a_frame_of_polars_without_pyarrow_says_what_to_add() -> None:
    @sandbox(dependencies=["polars"])
    def frame() -> Any:
        import polars as pl

        return pl.DataFrame({"a": [1]})

    with pytest.raises(Exception, match="add pyarrow to the dependencies"):
        frame()
