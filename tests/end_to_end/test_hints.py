# SPDX-License-Identifier: Apache-2.0
"""Each row of the table of hints is met by the real exception, raised in a real cell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import hutch
from hutch import Session
from hutch._hints import ROWS

DATA = """
import json, numpy as np, pandas as pd
df = pd.DataFrame({"name": ["a", "b"], "age": [1, 2]})
"""
# By row: what raises it in a session, and what its hint says.
PLAIN: dict[str, list[tuple[str, str]]] = {
    "missing package": [
        ("import cv2", 's.install("opencv-python-headless")'),
        ("import PIL.Image", 's.install("pillow")'),
        ("import sklearn", 's.install("scikit-learn")'),
        ("import yaml", 's.install("pyyaml")'),
        ("import bs4", 's.install("beautifulsoup4")'),
        ("import google.protobuf", 's.install("'),
        ("import my_own_module", 'modules=["my_own_module"]'),
        ("import hutch", "not inside the sandbox"),
        ("import google.generativeai as genai", 's.install("google-generativeai")'),
        ("from google import genai", 's.install("google-genai")'),
        ("import google.unheard_of", "google itself is none"),
        ("from utils import helper", "a module of yours"),
        ("import win32com", "this is Linux"),
        ("import json.none", "has no json.none"),
        ("open('mine.py', 'w').close()\nimport mine.inner", "a file mine.py may hide"),
        (
            "import subprocess, sys\ncommand = [sys.executable, '-c', 'import sandbox_utils']\n"
            "said = subprocess.run(command, stderr=-1, text=True).stderr\n"
            "raise ModuleNotFoundError(said.strip().split(': ')[1])",
            "in the code's own process",
        ),
    ],
    "name in a package": [
        ("from json import nothing", "look by dir()"),
        ("from collections import Mapping", "from collections.abc import Mapping"),
    ],
    "name": [
        ("np.zeros(3)", "`import numpy as np`"),
        ("math.pi", "`import math`"),
        ("no_such_name", ""),
        ("get_ipython()", "no magic commands"),
        ("x = {'a': true}", "Python has True for it"),
        ("null", "Python has None for it"),
        ("python\nprint(1)", "the name of the language"),
        ("In [1]: 1 + 1", "leave out the prompts"),
        ("wave", "`import wave`"),
        ("ls", "begins with ! is a command"),
        ("ls -la", "begins with ! is a command"),
        ("cd /tmp", "begins with ! is a command"),
        ("find = lst + 1", ""),
    ],
    "input": [("input()", "on_input="), ("raise EOFError", "")],
    "not Python": [
        ("x = (", ""),
        ("%timeit sum([1])", "timeit.timeit("),
        ("took = %timeit -o sum([1])", "timeit.timeit("),
        ("%%time\nx = 1", "time.perf_counter()"),
        ("%time x = 1", "time.perf_counter()"),
        ("%env A=1", "os.environ"),
        ("%run other.py", "runpy.run_path"),
        ("%%writefile a.txt\nx", "write_text"),
        ("%%bash\nls", "s.bash(text)"),
        ("%matplotlib inline", "leave it out"),
        ("%pip install x", "Session.install"),
        ("npm install x", "node_dependencies="),
        ("!npm install x", "node_dependencies="),
        ("sudo apt-get install x", "Environment(base="),
        ("!apt install x", "Environment(base="),
        ("git status", "begins with ! is a command"),
        ("cat data.csv", "begins with ! is a command"),
        ("echo hi", "begins with ! is a command"),
        ("find x = 3", ""),
        ("%unheard of", "no magic commands"),
    ],
    "typography": [("print(“a”)", "straight quotes")],
    "no loop": [
        ("import asyncio\nasync def f(): pass\nc = f()\ntry: asyncio.create_task(c)\n"
         "finally: c.close()", "`await` outside functions"),
    ],
    "running loop": [
        ("import asyncio\nasync def f(): pass\nc = f()\nawait asyncio.sleep(0)\n"
         "try: asyncio.run(c)\nfinally: c.close()", "await the coroutine instead"),
    ],
    "nested code": [("x = 1" + " + 1" * 20_000, "nested too deeply")],
    "recursion": [("def f(): f()\nf()", "has no end")],
    "no terminals": [("import pty\npty.openpty()", "use pipes")],
    "no resolver": [("import socket\nsocket.getaddrinfo('host.example', 80)", "no network")],
    "unknown host": [("import socket\nsocket.getaddrinfo('host.example', 80)", "no network")],
    "no file": [
        ("open('sale.csv')", "did you mean 'sales.csv'?"),
        ("open('Sales.CSV')", "did you mean 'sales.csv'?"),
        ("open('dta/2024/report.txt')", "did you mean 'data/2024/report.txt'?"),
        ("open('data/2024/reports.txt')", "did you mean 'data/2024/report.txt'?"),
        ("open('/home/me/own.xlsx')", "s.files.upload()"),
        ("import subprocess\nsubprocess.run(['node', '-v'])", "no program node"),
        ("raise FileNotFoundError('config')", ""),
        ("open('new/dir/f.txt', 'w')", "os.makedirs('new/dir', exist_ok=True)"),
        ("open('new/f', mode = 'ab')", "os.makedirs('new', exist_ok=True)"),
        ("import os\nos.mkdir('a/b')", "os.makedirs('a', exist_ok=True)"),
        ("from pathlib import Path\nPath('q/w').mkdir()", "os.makedirs('q', exist_ok=True)"),
        ("open('new/dir/f.txt')", "files of the host"),
    ],
    "variable": [
        ("import os\nos.environ['API_KEY']", 'Session(env={"API_KEY": …})'),
        ("{}['API_KEY']", ""),
        ("import os\nx = os.environ['HOME']\n{}['API_KEY']", ""),
    ],
    "JSON: path": [("import json\njson.load('x.json')", "json.loads(text)")],
    "module of a class": [("import datetime\ndatetime.now()", "from datetime import datetime")],
    "privilege": [("import os\nos.kill(1, 9)", "privilege")],
    "read-only": [("open('/usr/x', 'w')", "only the working directory")],
    "open files": [("files = [open('/dev/null') for _ in range(2000)]", "1,024")],
    "no room": [
        ("import os, tempfile\nwith tempfile.TemporaryDirectory() as place:\n"
         "    open(place + '/x', 'wb').write(bytes(128 << 20))", "disk_mb="),
    ],
    "no network": [("import socket\nsocket.create_connection(('192.0.2.1', 9))", "no network")],
    "nothing listens": [("import socket\nsocket.create_connection(('127.0.0.1', 9))", "listens")],
    "memory": [("raise MemoryError", "Session(memory_mb=…)")],
    "not UTF-8": [
        ("open('latin', 'wb').write(b'caf\\xe9')\nopen('latin').read()", 'encoding="latin-1"'),
        ("open('wide', 'wb').write(b'\\xff\\xfea\\0')\nopen('wide').read()", "UTF-16"),
        ("open('p', 'wb').write(b'\\xff\\xd8\\xff')\nopen('p').read()", 'mode "rb"'),
        ("import gzip\nopen('z', 'wb').write(gzip.compress(b'a'))\nopen('z').read()", "gzip.open"),
    ],
    "not ASCII": [("'é'.encode('ascii')", 'encoding="utf-8"'), ("'€'.encode('latin-1')", "utf-8")],
    "surrogates": [("'\\udce9'.encode()", "replace")],
    "JSON: quotes": [("import json\njson.loads(\"{'a': 1}\")", "ast.literal_eval")],
    "JSON: several values": [("import json\njson.loads('{}\\n{}')", "JSON Lines")],
    "JSON: byte order mark": [("import json\njson.loads('\\ufeff{}')", "utf-8-sig")],
    "JSON: no value": [
        ("import json\njson.loads('')", "the text is empty"),
        ("import json\njson.loads('<html>')", "HTML"),
    ],
    "JSON: cut": [
        ("import json\njson.loads('{\"a\": [1, 2')", "cut"),
        ("import json\njson.loads('[\"a')", "cut"),
    ],
    "int of text": [("int('3.5')", "int(float(text))")],
    "time zones": [
        ("from datetime import *\ndatetime.now() < datetime.now(timezone.utc)", "tz_localize"),
        ("from datetime import *\ndatetime.now() - datetime.now(timezone.utc)", "timezone.utc"),
    ],
}  # fmt: skip
WITH_PACKAGES: dict[str, list[tuple[str, str]]] = {
    "optional package": [
        ('df.to_excel("x.xlsx")', 's.install("openpyxl")'),
        ('df.to_parquet("x.parquet")', 's.install("pyarrow")'),
        ("df.plot()", 's.install("matplotlib")'),
    ],
    "JSON: type": [
        ('json.dumps(df["age"].sum())', "int(value)"),
        ("json.dumps(np.zeros(3))", "value.tolist()"),
        ("json.dumps(df)", 'to_dict("records")'),
        ('json.dumps(pd.Timestamp("2024-01-01"))', "default=str"),
        ("json.dumps({1, 2})", "list(value)"),
    ],
    "float of text": [
        ('pd.Series(["1,234"]).astype(float)', "pd.to_numeric"),
        ('np.array(["a"]).astype(float)', "pd.to_numeric"),
    ],
    "NaN to integer": [
        ('pd.Series([1.0, None]).astype(int)', 'astype("Int64")'),
        ("int(float('nan'))", "fillna"),
    ],
    "time zones": [
        ('pd.Timestamp("2024-01-01") < pd.Timestamp("2024-01-01", tz="UTC")', "tz_localize"),
    ],
    "time format": [('pd.to_datetime(["2024-01-01", "1/2/2024"])', 'format="mixed"')],
    "truth of a Series": [
        ('if df["age"] > 1: pass', ".any(), .all() or .empty"),
        ('df[(df.age > 1) and (df.age < 3)]', "& | ~"),
    ],
    "no directory": [('df.to_csv("nowhere/x.csv")', "os.makedirs(")],
    "axis": [('df.drop("age")', "df.drop(columns=")],
    "column": [
        ('df["nme"]', "did you mean 'name'?"),
        ('df[["Name", "aeg"]]', "did you mean 'name' or 'age'?"),
        ('df.set_index("name").loc["Age"]', ""),
        ('{"name": 1}["nme"]', ""),
    ],
    "length of values": [('df["x"] = [1, 2, 3]', "one value for each row")],
    "length mismatch": [('df.columns = ["a"]', "one name for each column")],
    "all scalars": [('pd.DataFrame({"a": 1})', "in a list")],
    "merge of types": [
        ('df.merge(pd.DataFrame({"age": ["1"]}), on="age")', ".astype(str)"),
    ],
    "duplicate labels": [
        ('pd.Series([1, 2], index=[0, 0]).reindex([0, 1])', "reset_index"),
    ],
    "accessor": [
        ("df.age.str.upper()", ".astype(str)"),
        ("df.name.dt.year", "pd.to_datetime"),
    ],
    "removed method": [("df.append({})", "pd.concat"), ("df.iteritems()", ".items()"),
                       ("df.sort('age')", ".sort_values()"), ("df.ix[0]", ".loc or .iloc"),
                       ("df.no_such_method()", "")],
    "text in a mean": [("df.mean()", "numeric_only=True"),
                       ('df.groupby("age").mean()', "numeric_only=True")],
    "empty file": [('open("e.csv", "w").close()\npd.read_csv("e.csv")', "the file is empty")],
    "CSV fields": [
        ('import io\npd.read_csv(io.StringIO("a,b\\n1,2\\n1,2,3\\n"))', 'on_bad_lines="skip"'),
    ],
    "truth of an array": [("if np.array([1, 2]) > 1: pass", ".any() or .all()")],
    "broadcast": [("np.zeros(3) + np.zeros(4)", "print the shapes"),
                  ("x = np.zeros(3)\nx[:] = np.zeros(4)", "print the shapes")],
    "alignment": [
        ("np.dot(np.zeros((2, 3)), np.zeros((2, 3)))", "a.T or b.T"),
        ("np.zeros((2, 3)) @ np.zeros((2, 3))", "a.T or b.T"),
    ],
    "reshape": [("np.zeros(6).reshape(4)", "-1 in one place")],
    "inhomogeneous": [("np.array([[1], [1, 2]])", "differ in length")],
    "index": [("np.zeros(3)[3]", "print the shape")],
    "numpy alias": [("np.float(1)", "use float"), ("np.float_(1)", "np.float64")],
    "memory": [("np.zeros(1 << 50)", "memory_mb=")],
}  # fmt: skip
# Tried elsewhere: what they need is more than a piece of code of a session.
ELSEWHERE = {
    "refused host": "test_a_host_that_is_refused_has_its_pattern",
    "own limit": "test_limits_are_explained_from_their_text",
    "threads": "test_processes_and_threads_beyond_the_limit",
    "processes": "test_processes_and_threads_beyond_the_limit",
    "no room for an array": "bindings/test_outcome.py: numpy says it of disks that fill up",
    "chained assignment": "test_a_warning_is_explained",
}


def cases(table: dict[str, list[tuple[str, str]]]) -> list[Any]:
    return [
        pytest.param(source, says, id=f"{row}-{at}")
        for row, found in table.items()
        for at, (source, says) in enumerate(found)
    ]


def hint_of(session: Session, source: str) -> str:
    outcome = session.exec(source)
    assert outcome.error is not None and outcome.status in ("raised", "limit"), outcome
    assert not outcome.restarted, outcome
    return outcome.error.hint


def check(session: Session, source: str, says: str) -> None:
    outcome = session.exec(source)
    error = outcome.error
    assert error is not None and outcome.status in ("raised", "limit"), outcome
    assert says in error.hint if says else error.hint == "", str(outcome)
    found = hutch.explain(error.traceback)
    assert found.type.rpartition(".")[2].removeprefix("_Array") == error.type
    of_sessions = ("did you mean", "s.files", "s.install(", "Session(", "on_input")
    if error.hint and not outcome.limit and not any(one in error.hint for one in of_sessions):
        assert found.hint == error.hint


def test_every_row_has_an_example() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    assert set(names) == PLAIN.keys() | WITH_PACKAGES.keys() | ELSEWHERE.keys()


@pytest.fixture(scope="module")
def plain() -> Iterator[Session]:
    files = {"sales.csv": "a,b\n", "data/2024/report.txt": "x"}
    with Session(files=files, memory_mb=256, disk_mb=32, timeout_sec=60) as session:
        yield session


@pytest.fixture(scope="module")
def with_packages() -> Iterator[Session]:
    with Session(dependencies=["pandas", "numpy"], memory_mb=512, timeout_sec=60) as session:
        session.exec(DATA).unwrap()
        yield session


@pytest.mark.parametrize(("source", "says"), cases(PLAIN))
def test_an_error_has_its_hint(plain: Session, source: str, says: str) -> None:
    check(plain, source, says)


@pytest.mark.parametrize(("source", "says"), cases(WITH_PACKAGES))
def test_an_error_of_data_has_its_hint(with_packages: Session, source: str, says: str) -> None:
    check(with_packages, source, says)


def test_a_program_has_hints_of_its_own() -> None:
    shell = hutch.run("files = !ls").error
    assert shell is not None and "subprocess.run" in shell.hint
    outcome = hutch.run("import cv2")
    assert outcome.error is not None
    assert outcome.error.hint.startswith('add dependencies=["opencv-python-headless"]')
    outcome = hutch.run("open('nots.txt')", files={"notes.txt": ""})
    assert outcome.error is not None
    assert outcome.error.hint == "there is no such file; did you mean 'notes.txt'?"


def test_a_function_that_a_session_calls_has_hints_of_the_session(plain: Session) -> None:
    def look() -> None:
        import importlib

        importlib.import_module("cv2")

    with pytest.raises(hutch.SandboxExecutionError) as caught:
        plain.call(look)
    assert 's.install("opencv-python-headless")' in caught.value.hint


def test_a_name_that_a_restart_has_cost_is_reported() -> None:
    with Session(memory_mb=256) as s:
        s.exec("frame = 1\nother = 2")
        assert s.exec("import os; os._exit(1)").restarted
        wrong = s.exec("frame + 1")
        assert wrong.error is not None
        assert wrong.error.hint == (
            "frame was lost when the interpreter was restarted: define or import it again"
        )
        assert hint_of(s, "never_there + 1") == ""
        s.exec("frame = 3")
        assert s.exec("frame").value == 3


URL = "import urllib.request\nurllib.request.urlopen('http://denied.example:8080/', timeout=9)"
FORBIDDEN = "403 Client Error: Forbidden for url: https://denied.example/"
POOL = "HTTPConnectionPool(host='denied.example', port=8080): {}"


def test_a_host_that_is_refused_has_its_pattern() -> None:
    rules = {"allow_network": ["*.allowed.example", "127.0.0.0/8"], "timeout_sec": 30}
    wrong = hutch.run(URL, **rules)  # type: ignore[arg-type]
    assert wrong.error is not None
    assert wrong.error.hint == "allow_network=['denied.example:8080'] would allow it"
    with pytest.raises(hutch.NetworkDenied) as caught:
        wrong.unwrap()
    assert hutch.explain(f"hutch.NetworkDenied: {caught.value}").hint == caught.value.hint
    with Session(**rules) as s:  # type: ignore[arg-type]
        assert 'Session(allow_network=["name:port"])' in hint_of(s, URL)
        s.exec("class HTTPError(OSError): pass")  # as requests raises it
        hint = hint_of(s, f"raise HTTPError({FORBIDDEN!r})")
        assert 'Session(allow_network=["denied.example:443"])' in hint


def test_a_host_that_no_entry_covers_has_its_pattern() -> None:
    with Session(allow_network=["allowed.example"], timeout_sec=30) as s:
        assert 'Session(allow_network=["name:port"])' in hint_of(s, URL)
        source = f"""try:
    {URL.replace(chr(10), "; ")}
except OSError as error:
    raise ConnectionError({POOL!r}.format(error))"""
        assert 'Session(allow_network=["denied.example:8080"])' in hint_of(s, source)


def test_limits_are_explained_from_their_text() -> None:
    with Session(memory_mb=128, disk_mb=8, pids=16) as s:
        for source, keywords in (
            ("while True: pass", {"timeout_sec": 0.5}),
            ("x = [bytearray(1 << 20) for _ in range(4000)]", {}),
            ("open('x', 'wb').write(bytes(64 << 20))", {}),
        ):
            outcome = s.exec(source, **keywords)  # type: ignore[arg-type]
            assert outcome.limit and outcome.error is not None
            assert "raise it, for instance" in outcome.exception().hint, outcome
            told = f"hutch.{type(outcome.exception()).__name__}: {outcome.exception()}"
            assert hutch.explain(told).hint == outcome.exception().hint
            first = told.splitlines()[0]
            assert "raise it, for instance" in hutch.explain(first).hint, first


def test_processes_and_threads_beyond_the_limit() -> None:
    for source in (
        "import threading, time\nfor _ in range(99):\n"
        "    threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
        "import subprocess\na = [subprocess.Popen(['sleep', '9']) for _ in range(99)]",
    ):
        outcome = hutch.run(source, pids=8)
        assert outcome.limit == "pids" and outcome.error is not None
        assert "pids=" in outcome.error.hint and "pids=16" in outcome.exception().hint


def test_a_warning_is_explained() -> None:
    for kind in ("SettingWithCopyWarning", "pandas.errors.ChainedAssignmentError"):
        assert "df.loc[rows, column] = value" in hutch.explain(f"{kind}: A value is trying").hint


def test_what_a_cell_says_is_shown_short_and_escaped() -> None:
    with Session() as s:
        s.exec(
            "import sys\nclass Fake(FileNotFoundError): pass\n"
            "sys.modules['_hutch_nearby'].near = lambda _: ['\\x1b[2J' + 'x' * 10**6, 5, 'b\\nc']"
        )
        wrong = s.exec("open('absent')")
        assert wrong.error is not None
        hint = wrong.error.hint
        assert hint.startswith("there is no such file; did you mean '\\x1b[2Jxxx")
        assert len(hint) < 400 and hint.isprintable() and hint.endswith("'b\\nc'?")


def test_looking_for_names_nearby_is_bounded() -> None:
    with Session(timeout_sec=60) as s:
        s.exec("import os\nfor i in range(5000): os.close(os.open(f'f{i}', os.O_CREAT))").unwrap()
        s.exec("os.symlink('.', 'circle')\nos.makedirs('a/b/c/d/e')")
        s.exec("open('a/b/c/d/e/deep.txt', 'w')")
        assert "s.files" in hint_of(s, "open('nowhere/deep.txt')")
