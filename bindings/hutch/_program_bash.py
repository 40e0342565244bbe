# SPDX-License-Identifier: Apache-2.0
"""A program for bash, as a Python program that starts it and ends as it does."""

from __future__ import annotations

_MOST = (1 << 17) - 1  # bytes: what Linux takes as one argument of a program

# The texts are in hexadecimal digits, so that no word of theirs looks as if the program were to
# find its own file. Python ignores SIGPIPE and SIGXFSZ, which its children would.
_STARTER = """\
import os, sys
text, name = bytes.fromhex("{text}"), bytes.fromhex("{name}")
words = [b"bash", b"-c", text, name, *getattr(sys, "arg" "v")[1:]]
try:
    pid = os.posix_spawnp("bash", words, os.environ, setsigdef=(13, 25))
except FileNotFoundError:
    print("there is no bash in this base image: name one that has it by base=", file=sys.stderr)
    sys.exit(127)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
sys.exit(code if code >= 0 else 128 - code)
"""


def starter(source: str, filename: str) -> str:
    """`filename`: its `$0`. Raises ValueError for text that no bash can be given."""
    text = source.encode("utf-8", "surrogateescape")
    if b"\0" in text:
        raise ValueError("the program has a zero byte, which bash cannot be given")
    if len(text) > _MOST:
        raise ValueError(
            f"the program has {len(text):,} bytes: Linux takes at most {_MOST:,} as an argument; "
            'give it by files={"run.sh": …}, and run ". ./run.sh"'
        )
    return _STARTER.format(text=text.hex(), name=filename.encode().hex())
