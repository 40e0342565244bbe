# SPDX-License-Identifier: Apache-2.0
"""Values from a sandbox: how they are built, and which of them an annotation allows."""
