# SPDX-License-Identifier: Apache-2.0
"""What an agent types into a session does what it does in IPython, in a virtual environment with
the same packages: output, values, types and messages of errors, and their lines. The pieces are in
sessions.txt.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hutch import Session

HERE = Path(__file__).parent
PACKAGES = [
    *("ipython", "pandas", "polars", "duckdb", "networkx", "sympy", "scipy", "statsmodels"),
    *("pillow", "lxml", "beautifulsoup4", "openpyxl", "pyarrow", "matplotlib", "seaborn"),
    *("plotly", "tabulate", "rich", "httpx", "fastapi", "sqlalchemy", "nltk", "jinja2"),
    *("pydantic", "tqdm", "attrs", "scikit-learn", "pyyaml", "python-dateutil", "cloudpickle"),
    *("dill", "joblib"),
]


def cases() -> dict[str, list[str]]:
    parts = re.split(r"(?m)^== ([\w-]+)\n", (HERE / "sessions.txt").read_text())[1:]
    return {
        name: text.strip("\n").split("\n--\n")
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


CASES = cases()

# Runs each case in a process and a directory of its own.
REFERENCE = """
import json, os, sys, tempfile, traceback
from IPython.core.interactiveshell import InteractiveShell

def ran(pieces):
    os.chdir(tempfile.mkdtemp())
    shell = InteractiveShell.instance()
    shell.showtraceback = shell.showsyntaxerror = lambda *a, **k: None
    shell.showindentationerror = lambda *a, **k: None
    hook = shell.displayhook
    hook.quiet = lambda: False
    hook.write_output_prompt = hook.finish_displayhook = lambda: None
    hook.write_format_data = lambda *a: None
    printed, kept, found = tempfile.mktemp(), os.dup(1), []
    for piece in pieces:
        fd = os.open(printed, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        os.dup2(fd, 1)
        try:
            result = shell.run_cell(piece, store_history=True)
            error, value = result.error_before_exec or result.error_in_exec, result.result
        except BaseException as raised:
            error, value = raised, None
        sys.stdout.flush()
        os.dup2(kept, 1)
        frames = traceback.extract_tb(error.__traceback__) if error else []
        found.append({
            "stdout": open(printed, newline="").read(),
            "value": None if value is None else repr(value),
            "error": [type(error).__name__, str(error)] if error else None,
            "lines": [one.lineno for one in frames if "ipython-input" in one.filename],
        })
    return found

cases, place = sys.argv[1:]
sys.argv = [""]
for name, pieces in json.load(open(cases)).items():
    if os.fork() == 0:
        try:
            path = os.path.join(place, name + ".json")
            text = json.dumps(ran(pieces))
            open(path, "w").write(text)
        finally:
            os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    place = tmp_path_factory.mktemp("plain")
    uv = [sys.executable, "-m", "uv", "--quiet"]
    python = place / "env" / "bin" / "python"
    subprocess.run([*uv, "venv", "--python", sys.executable, place / "env"], check=True)
    install = [*uv, "pip", "install", "--only-binary", ":all:", "--python", python]
    subprocess.run([*install, *PACKAGES], check=True)
    (place / "reference.py").write_text(REFERENCE)
    (place / "cases.json").write_text(json.dumps(CASES))
    path = f"{python.parent}:/usr/bin:/bin"
    subprocess.run(
        [python, "reference.py", "cases.json", place],
        cwd=place,
        env={"PATH": path, "HOME": str(place), "LANG": "C.UTF-8"},
        check=True,
        stdout=subprocess.DEVNULL,  # no pipes: workers of joblib outlive their parent
        stderr=subprocess.DEVNULL,
        timeout=1200,
    )
    return lambda name: json.loads((place / f"{name}.json").read_text())


def same(text: Any) -> Any:
    """Without addresses and the names of pieces."""
    if not isinstance(text, str):
        return text
    text = re.sub(r"0x[0-9a-f]{6,}", "0x", text)
    return re.sub(r"<ipython-input-\d+-\w+>|<cell \d+>", "<piece>", text)


def lines_of(traceback: str) -> list[int]:
    last = traceback.split("\nDuring handling of")[-1].split("\nThe above exception was")[-1]
    return [int(one) for one in re.findall(r'File "<cell \d+>", line (\d+), in', last)]


@pytest.mark.compat
@pytest.mark.parametrize("name", CASES)
def test_pieces_do_in_a_session_what_they_do_in_ipython(name: str, plain: Any) -> None:
    expected = plain(name)
    with Session(dependencies=PACKAGES) as s:
        for piece, wanted in zip(CASES[name], expected, strict=True):
            outcome = s.exec(piece, timeout_sec=60)
            assert same(outcome.stdout) == same(wanted["stdout"]), piece
            value = None if outcome.value is None else repr(outcome.value)
            if same(value) != same(wanted["value"]):
                shown = [same(one.get("text/plain")) for one in outcome.display]
                assert value is None and same(wanted["value"]) in shown, piece
            error = outcome.error
            assert (error is None) == (wanted["error"] is None), f"{piece}\n{outcome}"
            if error is not None:
                found = [error.type.split(".")[-1], same(error.message)]
                assert found == [wanted["error"][0], same(wanted["error"][1])], piece
                assert lines_of(error.traceback) == wanted["lines"], error.traceback


@pytest.fixture(scope="module")
def s() -> Iterator[Session]:
    with Session(dependencies=PACKAGES) as session:
        yield session


@pytest.mark.compat
def test_tables_of_rich_and_figures_of_plotly_are_shown(s: Session) -> None:
    table = s.exec("from rich.table import Table\nTable('head', title='x')")
    assert "text/html" in table.display[0]
    for source in ("px.bar(x=['a'], y=[1])", "px.bar(x=['a'], y=[1]).show()"):
        figure = s.exec(f"import plotly.express as px\n{source}")
        assert figure.ok and "text/html" in figure.display[0], figure


@pytest.mark.compat
@pytest.mark.parametrize("packages", [["ipython"], ["plotly", "pandas"]])
def test_what_was_not_imported_ahead_is_shown(packages: list[str]) -> None:
    with Session(dependencies=packages, preload=[]) as s:
        if "ipython" in packages:
            source = "from IPython.display import HTML, display\ndisplay(HTML('<b>x</b>'))"
        else:
            source = "import plotly.express as px\npx.bar(x=['a'], y=[1]).show()"
        outcome = s.exec(source)
        assert outcome.ok and outcome.stdout == "", outcome
        assert "text/html" in outcome.display[0]


@pytest.mark.compat
def test_pictures_of_ipython_are_bytes(s: Session) -> None:
    png = "import PIL.Image, io\nb = io.BytesIO()\nPIL.Image.new('RGB', (2, 2)).save(b, 'png')\n"
    outcome = s.exec(
        f"{png}from IPython.display import Image, display\ndisplay(Image(b.getvalue()))"
    )
    assert outcome.display[0]["image/png"][:4] == b"\x89PNG"


@pytest.mark.compat
def test_an_analysis_over_several_pieces(tmp_path: Path) -> None:
    rows = [f"2024-01-{day:02},{shop},{day}" for day in range(1, 29) for shop in ("Bern", "Basel")]
    text = "day,shop,sales\n" + "\n".join(rows)
    with Session(dependencies=PACKAGES, files={"data.csv": text}) as s:
        head = s.exec("import pandas as pd\ndf = pd.read_csv('data.csv', parse_dates=['day'])\ndf")
        assert "text/html" in head.display[0]
        by_shop = s.exec("df.groupby('shop').sales.sum().to_dict()")
        assert by_shop.value == {"Basel": 406, "Bern": 406}
        plot = s.exec(
            "import matplotlib.pyplot as plt\n"
            "for k, g in df.groupby('shop'): plt.plot(g.day, g.sales, label=k)\n"
            "plt.legend(); plt.savefig('plot.png')"
        )
        assert "image/png" in plot.display[0]
        s.exec("df.to_parquet('d.parquet')")
        query = "import duckdb\nduckdb.sql(\"select sum(sales) from 'd.parquet'\").fetchall()"
        assert s.exec(query).value == [(812,)]
        s.files.download("plot.png", to=tmp_path / "plot.png")
        assert (tmp_path / "plot.png").read_bytes()[:4] == b"\x89PNG"
