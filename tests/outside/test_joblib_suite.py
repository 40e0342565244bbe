# SPDX-License-Identifier: Apache-2.0
"""joblib's own test_parallel, over the backend "hutch"."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.compat
def test_what_joblib_tests_of_each_backend(suite: Callable[..., set[str]]) -> None:
    found = pytest.importorskip("joblib.test.test_parallel", reason="this joblib has no tests")
    assert len(suite("joblib", "-k", "hutch", str(Path(found.__file__)))) > 20
