# SPDX-License-Identifier: Apache-2.0
"""One project in bash, Python and JavaScript, with a package that is added to it. Its process is
killed in the middle, and another one goes on: `python examples/workbench.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile

from hutch import Session

READ = """
import csv
with open("prices.csv") as file:
    prices = {row["name"]: int(row["price"]) for row in csv.DictReader(file)}
"""
CHART = """
const fs = require('node:fs')
const rows = fs.readFileSync('prices.csv', 'utf8').trim().split('\\n').slice(1)
rows.map((row) => '#'.repeat(Number(row.split(',')[1]))).join('\\n')
"""


def begin(storage: str) -> None:
    """In a process that does not live to close its session."""
    with Session(id="prices", storage=storage) as s:
        s.bash(
            "git init --quiet . && printf 'name,price\\ntea,3\\nmilk,2\\n' > prices.csv"
        ).unwrap()
        s.exec(READ).unwrap()
        s.kv.set("shop", "the corner shop")
        print(f"prices: {s['prices']}", flush=True)
    with Session(id="prices", storage=storage) as s:
        s.exec("draft = 'this is not saved yet'").unwrap()
        os.kill(os.getpid(), signal.SIGKILL)


def go_on(storage: str) -> None:
    with Session(id="prices", storage=storage) as s:
        print(f"again: {s['prices']} of {s.kv.get('shop')}; lost: {', '.join(s.lost)}")
        print(s.node(CHART).unwrap())
        s.install("tabulate==0.9.0")
        s.exec("from tabulate import tabulate\nprint(tabulate(prices.items(), tablefmt='plain'))")
        table = s.exec("tabulate(sorted(prices.items()), headers=['name', 'price'])").unwrap()
        s.files.write("README.md", table)
        s.bash("git add --all && git -c user.name=me -c user.email=me@localhost commit -qm Prices")
        print(s.bash("git log --format=%s && git show --stat --format= | tail -1").stdout, end="")
        print(f"{len(s.history())} things were done")


def main() -> None:
    with tempfile.TemporaryDirectory() as storage:
        child = subprocess.run([sys.executable, __file__, storage], check=False)
        print(f"the process ended by signal {-child.returncode}")
        go_on(storage)


if __name__ == "__main__":
    begin(sys.argv[1]) if len(sys.argv) > 1 else main()
