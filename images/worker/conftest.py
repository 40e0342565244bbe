# SPDX-License-Identifier: Apache-2.0
"""The Podman, base image and worker files of the agent that runs here are what the tests use."""

from __future__ import annotations

import os
import sys

sys.path.append(os.path.dirname(__file__))  # for driver.py


def _use_the_agents_own() -> None:
    if os.environ.get("HUTCH_TEST_RUNTIME"):
        return
    try:
        import hutch
        from hutch import _core
        from hutch._connect import launcher

        hutch.run("pass")
    except Exception:
        return  # the tests say what they need
    runtime = f"{_core.paths()['state_dir']}/runtime/{launcher.runtime_id()}"
    os.environ.setdefault("HUTCH_TEST_PODMAN", f"{sys.executable} -m hutch podman")
    os.environ.setdefault("HUTCH_TEST_IMAGE", f"localhost/hutch-base:{launcher.base_id()}")
    os.environ["HUTCH_TEST_RUNTIME"] = runtime


_use_the_agents_own()
