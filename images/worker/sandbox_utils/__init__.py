# SPDX-License-Identifier: Apache-2.0
"""What the tools of a shell do with files, text and rows, as functions: plain data in and out.

    from sandbox_utils import find, grep, sort_by

    for path, number, line in grep(r"TODO|FIXME", "src", recursive=True):
        print(f"{path}:{number}: {line}")

Paths that are relative start at the process's working directory. Each path has to be below the
directory in which the session or the call began; one outside of it, also by a symbolic link, is a
PermissionError unless `outside=True` is given. That guards against accidents, and is no wall.

What can be large is a generator: `list(find("."))`. Directories that cannot be read, and the like,
are reported in a line on stderr, or to `on_error`, a function of the OSError. Links are never
followed on the way down a tree. Text is UTF-8, with or without a byte order mark; other bytes are
shown as U+FFFD. Lines are returned without their ends; one of more than 16 MiB is cut, which its
end says. Files that are neither regular nor directories (FIFOs, devices) are refused.
"""

from sandbox_utils._files import cat, cp, echo, ls, mkdir, mv, rm, touch
from sandbox_utils._formats import csv_to_json, json_to_csv, xml_to_dict
from sandbox_utils._rows import chunk, filter_by, group_by, sort_by, unique
from sandbox_utils._search import diff, grep, sed
from sandbox_utils._text import head, tail, wc
from sandbox_utils._trees import copy_tree, remove_tree
from sandbox_utils._walking import find, tree, walk

__all__ = [
    "find", "tree", "walk", "ls", "copy_tree", "remove_tree", "touch", "mkdir", "rm", "cp", "mv",
    "echo", "cat", "head", "tail", "wc", "grep", "sed", "diff",
    "group_by", "filter_by", "sort_by", "unique", "chunk",
    "csv_to_json", "json_to_csv", "xml_to_dict",
]  # fmt: skip
