# SPDX-License-Identifier: Apache-2.0
"""What a worker does ahead of calls with well-known packages is not seen in them."""

from __future__ import annotations

from typing import Any

import hutch
from hutch import sandbox


def test_random_numbers_differ_from_call_to_call_and_follow_their_seed() -> None:
    @sandbox(dependencies=["pandas"])
    def draw(seed: int | None) -> list[float]:
        import random

        import numpy as np
        import pandas as pd

        if seed is not None:
            random.seed(seed)
            np.random.seed(seed)
        sample = pd.Series(range(1 << 20)).sample(1).iloc[0]
        default = np.random.default_rng(seed).random()
        return [random.random(), float(np.random.rand()), float(default), int(sample)]

    free = [draw(None) for _ in range(8)]
    for column in zip(*free):
        assert len(set(column)) == len(column), column
    assert draw(1) == draw(1)


def test_packages_do_what_they_do_at_their_first_use() -> None:
    @sandbox(dependencies=["pandas"])
    def used() -> dict[str, Any]:
        import sys
        import warnings

        before = [str(one) for one in warnings.filters]
        import numpy as np
        import pandas as pd

        frame = pd.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "x"]})
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            np.float64(1) / np.float64(0)
        return {
            "ahead": "pandas.core.frame" in sys.modules,
            "filters": before == [str(one) for one in warnings.filters],
            "heard": len(heard),
            "sums": frame.groupby("b").a.sum().to_dict(),
            "text": frame.to_csv(index=False),
            "errors": np.geterr(),
            "options": (pd.get_option("display.max_rows"), np.get_printoptions()["precision"]),
        }

    assert used() == {
        "ahead": True,
        "filters": True,
        "heard": 1,
        "sums": {"x": 4, "y": 2},
        "text": "a,b\n1,x\n2,y\n3,x\n",
        "errors": {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"},
        "options": (60, 8),
    }


PLOTS = """
import sys
ahead = "matplotlib.pyplot" in sys.modules
import matplotlib, matplotlib.pyplot as plt
plt.plot([1, 2, 3], label="a")
plt.title("some text, $x^2$")
plt.legend()
plt.savefig("a.png")
assert open("a.png", "rb").read(8) == b"\\x89PNG\\r\\n\\x1a\\n"
print(ahead, plt.get_fignums(), matplotlib.get_backend().lower())
"""


def test_plots_are_drawn_with_what_was_imported_ahead() -> None:
    for _ in range(2):
        outcome = hutch.run(PLOTS, dependencies=["matplotlib"])
        assert (outcome.stdout, outcome.stderr) == ("True [1] agg\n", "")


def test_packages_that_nobody_asked_for_are_not_loaded() -> None:
    @sandbox(dependencies=["numpy"])
    def loaded() -> list[str]:
        import sys

        return sorted({"numpy", "pandas", "scipy", "matplotlib"} & sys.modules.keys())

    assert loaded() == ["numpy"]


def test_modules_named_by_preload_are_the_only_ones_imported_ahead() -> None:
    @sandbox(dependencies=["matplotlib"], preload=["matplotlib"])
    def loaded() -> bool:
        import sys

        return "matplotlib.pyplot" in sys.modules

    assert not loaded()
