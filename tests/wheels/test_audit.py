# SPDX-License-Identifier: Apache-2.0
"""The audit of the wheels refuses a bill of materials that is not true."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from installation import DIST, MACHINE, ROOT

sys.path.insert(0, str(ROOT / "scripts" / "wheels"))

from audit import check_bill

pytestmark = pytest.mark.wheels
Change = Callable[[dict[str, Any]], object]


def audited(place: Path, change: Change | None) -> None:
    """The audit of the runtime's wheel with a changed bill; None: without one."""
    wheel = next(DIST.glob(f"hutch_runtime-*_{MACHINE}.whl"))
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(place / wheel.name, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if "/sboms/" in name:
                if change is None:
                    continue
                bill = json.loads(data)
                change(bill)
                data = json.dumps(bill).encode()
            new.writestr(name, data)
    with zipfile.ZipFile(place / wheel.name) as archive:
        check_bill(wheel, archive)


def version_of(library: str, version: str) -> Change:
    def change(bill: dict[str, Any]) -> None:
        next(part for part in bill["components"] if part["name"] == library)["version"] = version

    return change


def test_a_true_bill_is_taken(tmp_path: Path) -> None:
    audited(tmp_path, lambda bill: None)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(None, id="none"),
        pytest.param(lambda bill: bill["components"].pop(), id="one library less"),
        pytest.param(version_of("musl", ""), id="no version"),
        pytest.param(version_of("openssl", "3.0.99"), id="another openssl"),
    ],
)
def test_a_bill_that_is_not_true_is_refused(tmp_path: Path, change: Change | None) -> None:
    with pytest.raises(SystemExit, match="wheels: "):
        audited(tmp_path, change)
