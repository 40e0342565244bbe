# SPDX-License-Identifier: Apache-2.0
"""The zygote's memory is what it was after it was put into big pages, and so is a fork's."""

from __future__ import annotations

import subprocess
import sys

import pytest

_launcher = pytest.importorskip("hutch._connect.launcher", reason="hutch is not installed")

SETTLED = """
import gc, hashlib, importlib.util, mmap, os, pickle, sys
spec = importlib.util.spec_from_file_location("_hutch_cell", sys.argv[1])
cell = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cell)
cell.use_big_arenas()
import decimal, json, logging, re, typing
data = {str(n): [n, n / 3, bytes([n % 251]) * (n % 700)] for n in range(20_000)}

def digest():
    return hashlib.sha256(pickle.dumps(data)).hexdigest()

def moved():
    # bytes of mappings that are to be of big pages and are not one as they lie
    size = found = 0
    for line in open("/proc/self/smaps"):
        key, _, rest = line.partition(":")
        if key == "Size":
            size = int(rest.split()[0]) << 10
        elif key == "AnonHugePages" and rest.split()[0] != "0":
            size = 0
        elif key == "VmFlags" and "hg" in rest.split():
            found += size
    return found

wiped = mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
wiped[:] = b"x" * len(wiped)
wiped.madvise(18)  # MADV_WIPEONFORK

gc.collect()
gc.freeze()
before, was = digest(), moved()
cell.settle_pages()
assert digest() == before
print(moved() - was)

def use():
    data["0"] += range(300_000)  # what is there grows
    data.update((str(n), "x" * (n % 5000)) for n in range(20_000, 40_000))  # beside it
    more = [bytearray(1 << 20) for _ in range(40)]
    assert not any(map(any, more)) and json.loads(json.dumps(data["1"][:2])) == [1, 1 / 3]
    for key in list(data)[1::2]:
        del data[key]  # and shrinks
    assert re.sub("a", "b", "aa") == "bb" and decimal.Decimal(1) / 4 == decimal.Decimal("0.25")

if not (pid := os.fork()):
    use()
    assert not any(wiped[::4096])
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert wiped[:] == b"x" * len(wiped)
assert digest() == before  # a fork's memory is its own
use()
"""


def test_memory_is_what_it_was() -> None:
    library = f"{_launcher.RUNTIME}/worker/_hutch_cell.abi3.so"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", SETTLED, library], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    if int(done.stdout) == 0:
        pytest.skip("this kernel gave no big pages")
    assert int(done.stdout) >= 1 << 20
