# SPDX-License-Identifier: Apache-2.0
"""The scripts of this folder run in containers, by path: tests load them the same way."""

from __future__ import annotations

import importlib.util
import pathlib
from collections.abc import Callable
from types import ModuleType

import pytest

HERE = pathlib.Path(__file__).parent


@pytest.fixture
def script() -> Callable[[str], ModuleType]:
    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(
            "hutch_environment_" + name, HERE / (name + ".py")
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
