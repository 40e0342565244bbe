# SPDX-License-Identifier: Apache-2.0
"""The worker's driver plays agent and client here too."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

_WORKER = Path(__file__).parents[2] / "images" / "worker"
sys.path += [str(_WORKER), str(Path(__file__).parent)]
runpy.run_path(str(_WORKER / "conftest.py"))  # says where Podman, image and worker files are
