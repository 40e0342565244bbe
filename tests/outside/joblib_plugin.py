# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: the backend "hutch" is there before joblib's tests name the backends."""

from __future__ import annotations

from typing import Any

import joblib

from hutch.joblib import HutchBackend

# What the functions of the suite import, which are found by name inside.
_NEEDS = [f"joblib=={joblib.__version__}", "numpy", "pytest"]


class Backend(HutchBackend):
    def __init__(self, nesting_level: int | None = None, **keywords: Any) -> None:
        super().__init__(nesting_level, **{"dependencies": _NEEDS, **keywords})


joblib.register_parallel_backend("hutch", Backend)
