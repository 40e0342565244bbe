# SPDX-License-Identifier: Apache-2.0
"""`hutch.Client`: calls that other machines' `hutch serve` runs."""
