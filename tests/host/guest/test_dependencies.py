# SPDX-License-Identifier: Apache-2.0
"""A dependency is installed by a container with a network of its own: slirp4netns or pasta,
whichever this system's Podman has.
"""

from __future__ import annotations

from hutch import sandbox


def test_a_dependency_is_installed() -> None:
    @sandbox(dependencies=["hutch-test-tiny"], timeout_sec=60)
    def version() -> str:
        import hutch_test_tiny

        return str(hutch_test_tiny.VERSION)

    assert version() == "1.0"
