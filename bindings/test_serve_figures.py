# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from hutch.serve import figures
from hutch.serve.figures import GAUGES, Figures


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUTCH_SERVE_FIGURES", "")
    figures.share()


def figures_of(running: list[int]) -> Figures:
    return Figures({**dict.fromkeys(GAUGES, lambda: 0), "running": lambda: len(running)})


def test_what_two_count_is_reported_together(shared: None) -> None:
    async def work() -> None:
        of_one: list[int] = []
        one, two = figures_of(of_one), figures_of([1, 2])
        two.changed()
        one.count(200)
        two.count(200)
        two.count(504)
        while one.gauges()["running"] != 2:
            await asyncio.sleep(0.01)
        of_one.append(1)
        assert one.gauges()["running"] == 3
        assert one.answers() == two.answers() == {200: 2, 504: 1}

    asyncio.run(work())


def test_by_itself_it_tells_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HUTCH_SERVE_FIGURES", raising=False)
    figures_of([1]).count(200)
    assert figures_of([]).answers() == {}


def test_the_next_process_goes_on_counting_where_one_ended(shared: None) -> None:
    pid = os.fork()
    if pid == 0:
        ended = figures_of([1, 2, 3])
        ended.count(200)
        ended.gauges()
        os._exit(0)
    os.waitpid(pid, 0)
    assert not Path(f"/proc/{pid}").exists()
    now = figures_of([])
    assert now.answers() == {200: 1} and now.gauges()["running"] == 0
    now.count(200)
    assert now.answers() == {200: 2}
