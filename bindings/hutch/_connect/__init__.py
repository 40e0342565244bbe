# SPDX-License-Identifier: Apache-2.0
"""The way to the agent: it is found or started, pools are prepared, and progress is shown."""
