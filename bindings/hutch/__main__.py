# SPDX-License-Identifier: Apache-2.0
"""`python -m hutch`: the command line."""

from hutch.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
