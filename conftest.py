# SPDX-License-Identifier: Apache-2.0
"""What every test relies on."""

from __future__ import annotations

import signal

import pytest

LONG = ("compat", "machine", "soak", "storm")  # which take as long as they are told


def pytest_configure() -> None:
    # In the background of a shell SIGINT is ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.get_closest_marker(name) for name in LONG):
            item.add_marker(pytest.mark.timeout(4 * 3600))
