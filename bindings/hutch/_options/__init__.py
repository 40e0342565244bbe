# SPDX-License-Identifier: Apache-2.0
"""What a caller may say: keywords, policies and environments, checked and as values."""
