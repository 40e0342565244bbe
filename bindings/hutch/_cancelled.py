# SPDX-License-Identifier: Apache-2.0
"""SandboxCancelled, apart from the other errors: its base makes concurrent.futures be imported."""

from __future__ import annotations

from concurrent.futures import CancelledError

from hutch._errors import SandboxError


class SandboxCancelled(SandboxError, CancelledError):
    """The call was cancelled by its caller."""


SandboxCancelled.__module__ = "hutch"
