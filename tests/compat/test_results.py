# SPDX-License-Identifier: Apache-2.0
"""Values of packages that come back as what they are."""

from __future__ import annotations

import datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import pydantic
import pydantic.dataclasses
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


class Run(pydantic.BaseModel):
    at: datetime.datetime
    log: Annotated[Path | None, pydantic.Field(description="where")]
    by_name: dict[str, list[Path]]
    name: PurePosixPath
    anything: Any


@pydantic.dataclasses.dataclass
class Place:
    path: Path


def test_paths_and_times_of_models_arrive_as_they_are_annotated() -> None:
    @sandbox(dependencies=["pydantic"])
    def run(at: str) -> tuple[Run, Place]:
        path = Path("a/b")
        made = Run(at=at, log="a", by_name={"x": [path]}, name=path, anything=path)  # type: ignore[arg-type]
        return made, Place(path)

    found, place = run("2024-01-01T00:00:00.5-03:30")
    offset = datetime.timezone(-datetime.timedelta(hours=3, minutes=30))
    assert found.at == datetime.datetime(2024, 1, 1, 0, 0, 0, 500_000, offset)
    assert (found.log, found.by_name, place.path) == (Path("a"), {"x": [Path("a/b")]}, Path("a/b"))
    assert type(found.name) is type(found.anything) is PurePosixPath
    assert run("2024-01-01T00:00:00Z")[0].at.utcoffset() == datetime.timedelta()


@pytest.mark.compat
@pytest.mark.parametrize("isolation", ["cell", "shared", "container", "gvisor"])
def test_tensors_of_torch_travel_both_ways(isolation: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")

    @sandbox(dependencies=["torch"], isolation=isolation, timeout_sec=120, memory_mb=2048)
    def twice(given: Any, layer: Any) -> dict[str, Any]:
        given *= 2  # its own copy, which can be written to
        return {"given": given, **layer.state_dict(), "none": torch.empty(0, 3)}

    layer = torch.nn.Linear(3, 2)
    for given in (torch.rand(3).to(torch.bfloat16), torch.rand(400, 500)):
        result = twice(given, layer)
        assert torch.equal(result["given"], given * 2) and result["given"].dtype == given.dtype
        assert torch.equal(result["weight"], layer.weight) and not result["weight"].requires_grad
        assert result["none"].shape == (0, 3)


@pytest.mark.compat
def test_an_annotation_may_name_a_tensor() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")

    @sandbox(dependencies=["torch"], timeout_sec=120, memory_mb=2048, check_result=True)
    def ones() -> torch.Tensor:
        import torch

        return torch.ones(2)

    assert torch.equal(ones(), torch.ones(2))
