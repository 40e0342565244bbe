# SPDX-License-Identifier: Apache-2.0
"""What evalplus compares some tasks by: that of the evalplus installed here. Its text is sent."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import lru_cache

from hutch.evals.programs import source_of

_MODULE = "evalplus.eval._special_oracle"


@lru_cache(maxsize=1)
def text() -> str:
    """Raises ModuleNotFoundError."""
    return source_of(_MODULE, "evalplus")


def version() -> str:
    """Of evalplus; "" where it does not say."""
    return str(getattr(importlib.import_module("evalplus"), "__version__", ""))


def set_tasks() -> Sequence[str]:
    """Functions of MBPP whose results are compared as sets."""
    return _listed("MBPP_OUTPUT_SET_EQ_TASKS")


def not_none_tasks() -> Sequence[str]:
    """Functions of MBPP of whose results counts only whether there is one."""
    return _listed("MBPP_OUTPUT_NOT_NONE_TASKS")


def _listed(name: str) -> Sequence[str]:
    found: Sequence[str] = getattr(importlib.import_module(_MODULE), name)
    return found
