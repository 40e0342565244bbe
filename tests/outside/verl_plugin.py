# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: what verl has for SandboxFusion, without the rest of verl."""

from __future__ import annotations

from bare_packages import bare

bare("verl", "verl.utils", "verl.utils.reward_score")
