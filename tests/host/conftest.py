# SPDX-License-Identifier: Apache-2.0
"""Tests of the machine stand here; those of guest/ run inside it, not here."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # machine.py

collect_ignore = ["guest"]
