# SPDX-License-Identifier: Apache-2.0
"""docs/serve.md says which clients are tested, and at which version."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
FILES = (
    "test_fusion_clients.py", "test_fusion_suites.py", "test_openapi_conforms.py",
    "test_openr1_clients.py", "test_piston_clients.py",
)  # fmt: skip
HELPS = {"aiohttp", "pytest-asyncio"}  # what clients and suites need


def test_the_page_has_every_client_at_its_version() -> None:
    page = (HERE.parents[1] / "docs" / "serve.md").read_text()
    _, _, table = page.partition("## Clients that are tested\n")
    table = table.partition("\n## ")[0]
    code = "".join((HERE / name).read_text() for name in FILES)
    packages = {pin for pin in re.findall(r'"([\w-]+)==([\d.]+)"', code) if pin[0] not in HELPS}
    assert len(packages) > 5
    for name, version in packages:
        assert re.search(rf"`{re.escape(name)}`[ |]+{re.escape(version)}\b", table), name
    commits = re.findall(r'"[\w-]+/([\w-]+)", "([0-9a-f]{40})"', code)
    assert len(commits) == 3
    for name, commit in commits:
        assert re.search(rf"{re.escape(name)}\b.* {commit[:12]} \|", table), name
