# SPDX-License-Identifier: Apache-2.0
"""Prints the commands that mend what the doctor finds of user namespaces, and on stderr what that
is.
"""

import sys

import hutch
from hutch.cli import mending

checks = [
    check for check in hutch.doctor(prove=False)["checks"] if check["name"] == "user namespaces"
]
print("\n".join(mending.commands_of(checks, is_root=True)))
print(checks[0]["ok"], checks[0]["detail"], file=sys.stderr)
