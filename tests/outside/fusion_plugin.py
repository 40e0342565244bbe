# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: SandboxFusion's tests ask the server at FUSION_URL where they would ask their
own application in-process. What they import of it is what its published client has.
"""

from __future__ import annotations

import json
import os
import sys
import types
from typing import Any

import httpx
from sandbox_fusion import models


class Dumped:
    """The names of pydantic 2, which the tests use; the client's models are of pydantic 1."""

    def model_dump(self) -> Any:
        return json.loads(self.json())  # type: ignore[attr-defined]

    def model_dump_json(self, indent: int) -> str:
        return json.dumps(self.model_dump(), indent=indent)


def dumped(name: str) -> type:
    return type(name, (Dumped, getattr(models, name)), {})


def test_client(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=120)


DUMPED = ("RunCodeRequest", "RunCodeResponse", "RunJupyterRequest", "RunJupyterResponse")
MODULES: dict[str, dict[str, Any]] = {
    "sandbox": {},
    "sandbox.runners": {"CommandRunStatus": models.CommandRunStatus},
    "sandbox.server": {},
    "sandbox.server.server": {"app": os.environ["FUSION_URL"]},
    "sandbox.server.sandbox_api": {
        "RunStatus": models.RunStatus,
        **{name: dumped(name) for name in DUMPED},
    },
    "fastapi": {},
    "fastapi.testclient": {"TestClient": test_client},
}
for name, values in MODULES.items():
    module = types.ModuleType(name)
    module.__dict__.update(values)
    sys.modules[name] = module
