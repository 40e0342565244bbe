# SPDX-License-Identifier: Apache-2.0
"""What travels to a sandbox: functions, arguments, modules, and files of the host."""
