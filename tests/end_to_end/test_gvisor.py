# SPDX-License-Identifier: Apache-2.0
"""isolation="gvisor": each call in a container on a kernel of its own, without a relay between."""

from __future__ import annotations

import platform
import shutil

import pytest

import hutch
from hutch import sandbox

pytestmark = pytest.mark.skipif(
    shutil.which("runsc") is None, reason="gVisor's runsc is not installed: apt-get install runsc"
)


def test_the_kernel_is_not_the_hosts() -> None:
    release = "import platform; print(platform.release())"
    assert hutch.run(release).stdout.strip() == platform.release(), "the counterpart"
    assert hutch.run(release, isolation="gvisor").stdout.strip() != platform.release()


def test_each_call_has_a_container_of_its_own() -> None:
    square = sandbox(isolation="gvisor")(lambda x: x * x)
    outcomes = list(square.map(range(3), on_error="outcome"))
    assert [outcome.unwrap() for outcome in outcomes] == [0, 1, 4]
    assert len({outcome.worker_id for outcome in outcomes}) == 3


def test_large_values_and_exceptions_arrive() -> None:
    @sandbox(isolation="gvisor")
    def turn(data: bytes) -> bytes:
        if not data:
            raise ValueError("nothing")
        return data[::-1]

    data = bytes(range(256)) * 8192
    assert turn(data) == data[::-1]
    with pytest.raises(ValueError, match="nothing"):
        turn(b"")


def test_what_is_printed_arrives_while_it_runs() -> None:
    outcome = hutch.run("import sys\nprint(1)\nprint(2, file=sys.stderr)", isolation="gvisor")
    assert (outcome.stdout, outcome.stderr) == ("1\n", "2\n")


def test_a_call_that_ends_its_process_is_reported_as_it_was() -> None:
    assert hutch.run("import sys; sys.exit(3)", isolation="gvisor").exit_code == 3
    died = hutch.run("import os; os.abort()", isolation="gvisor")
    assert (died.status, died.signal) == ("died", 6)


def test_what_its_kernel_keeps_for_a_call_is_bounded() -> None:
    """Names without content: gVisor's file system has no limit of their number."""
    source = """
import os
n = 0
while True:
    os.symlink("x" * 4000, f"/tmp/{n}")
    n += 1
"""
    with pytest.raises(hutch.SandboxStartupError, match="lost") as raised:
        hutch.run(source, isolation="gvisor", timeout_sec=240)
    assert raised.value.may_have_run
