# SPDX-License-Identifier: Apache-2.0
"""Calls: what is called, how it is sent, and what becomes of its reply."""
