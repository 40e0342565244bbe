# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest, and for scripts: open-r1's clients, without the rest of open-r1, which needs
torch. Its tests of its routers ask the server at OPENR1_URL instead of their ports.
"""

from __future__ import annotations

import os
import re
import sys
import types
from typing import Any

import requests
from bare_packages import bare

bare("open_r1", "open_r1.utils", "open_r1.utils.competitive_programming")
utils: Any = sys.modules["open_r1.utils"]
utils.is_e2b_available = utils.is_morph_available = lambda: True
# Names that are imported, and not used where there is a router.
UNUSED: dict[str, tuple[str, ...]] = {
    "morphcloud": (),
    "morphcloud.api": ("MorphCloudClient",),
    "morphcloud.sandbox": ("Sandbox",),
    "datasets": ("load_dataset",),
    "open_r1.rewards": ("code_reward", "ioi_code_reward"),
}
for module, names in UNUSED.items():
    sys.modules[module] = types.ModuleType(module)
    for name in names:
        setattr(sys.modules[module], name, None)


def post(url: str, **keywords: Any) -> requests.Response:
    return sent(
        re.sub(r"^http://localhost:800[01](?=/)", os.environ["OPENR1_URL"], url), **keywords
    )


sent = requests.post
if "OPENR1_URL" in os.environ:
    requests.post = post
