# SPDX-License-Identifier: Apache-2.0
"""What sessions show: forms by type of media, figures, and `IPython.display` for libraries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hutch import Session

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def s() -> Iterator[Session]:
    with Session(memory_mb=256, timeout_sec=20) as session:
        yield session


@pytest.fixture(scope="module")
def plots() -> Iterator[Session]:
    with Session(dependencies=["matplotlib"], timeout_sec=60) as session:
        yield session


# ---- IPython, where it is not installed


def test_libraries_find_that_there_is_no_shell(s: Session) -> None:
    found = s.exec(
        "import importlib.util, IPython\n"
        "from IPython import get_ipython, version_info\n"
        "importlib.util.find_spec('IPython').name, get_ipython(), version_info >= (8, 24),"
        " IPython.__version__, hasattr(__builtins__, 'get_ipython')"
    )
    assert found.value == ("IPython", None, True, "9.0.0", False)
    absent = s.exec("import IPython.kernel").error
    assert absent is not None and absent.message == "No module named 'IPython.kernel'"


@pytest.mark.parametrize(
    ("value", "forms"),
    [
        ("HTML('<b>x</b>')", {"text/html": "<b>x</b>"}),
        ("Markdown('**x**')", {"text/markdown": "**x**"}),
        ("Latex('$x$')", {"text/latex": "$x$"}),
        ("Math('x^2')", {"text/latex": "$\\displaystyle x^2$"}),
        ("SVG(filename='a.svg')", {"image/svg+xml": "<svg/>"}),
        ("JSON({'a': 1})", {"application/json": {"a": 1}}),
        ("Image('a.png')", {"image/png": PNG}),
        ("Image(b'\\xff\\xd8x')", {"image/jpeg": b"\xff\xd8x"}),
        ("Image(url='https://a.org/a.png')", {"text/html": '<img src="https://a.org/a.png"/>'}),
    ],
)
def test_the_classes_of_ipython_are_there(s: Session, value: str, forms: object) -> None:
    s.files.write("a.png", PNG)
    s.files.write("a.svg", "<svg/>")
    outcome = s.exec(f"from IPython.display import *\n{value}")
    assert outcome.ok, outcome
    (shown,) = outcome.display
    shown.pop("text/plain")
    assert shown == forms
    assert s.exec(f"display({value})").display[0].items() >= shown.items()


def test_what_was_shown_is_shown_anew(s: Session) -> None:
    outcome = s.exec("shown = display(1, display_id=True)\nshown.update(2)\ndisplay(3)")
    assert [one["text/plain"] for one in outcome.display] == ["1", "2", "3"]


# ---- IPython, where it is


def test_display_of_an_installed_ipython_shows(tmp_path: Path) -> None:
    """As of IPython, which prints where no shell of its own runs."""
    package = tmp_path / "IPython"
    (package / "core").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "core" / "__init__.py").touch()
    (package / "core" / "display_functions.py").write_text(
        "def display(*values, **_): print(*values)\n"
        "def publish_display_data(data, metadata=None): print(data)\n"
    )
    (package / "display.py").write_text("from IPython.core.display_functions import *\n")
    code = (
        "from IPython.display import display as show, publish_display_data as publish\n"
        "show(5)\npublish({'text/html': '<i>'})\ndisplay(6)"
    )
    for preload in ([], ["IPython.display"]):
        with Session(modules=[package], preload=preload, memory_mb=256) as s:
            outcome = s.exec(code)
            assert outcome.ok and outcome.stdout == "", outcome
            assert outcome.display == [
                {"text/plain": "5"},
                {"text/html": "<i>"},
                {"text/plain": "6"},
            ]


# ---- forms


def test_forms_that_are_asked_for_as_ipython_does(s: Session) -> None:
    outcome = s.exec(
        "class Rich:\n"
        "  def _repr_mimebundle_(self, include, exclude):\n"
        "    return {'text/html': f'{include} {exclude}'}, {}\n"
        "Rich()"
    )
    assert outcome.display[0]["text/html"] == "None None"


def test_pictures_in_base64_are_bytes(s: Session) -> None:
    outcome = s.exec(
        "class Picture:\n  def _repr_png_(self): return 'iVBORw==\\n'\n"
        "display(Picture(), {'image/png': 'iVBORw=='}, raw=False)\n"
        "display({'image/png': 'iVBORw=='}, raw=True)"
    )
    assert outcome.display[0]["image/png"] == PNG
    assert outcome.display[1] == {"text/plain": "{'image/png': 'iVBORw=='}"}
    assert outcome.display[2] == {"image/png": PNG}


# ---- matplotlib


@pytest.mark.parametrize(
    "source",
    [
        "import matplotlib\nmatplotlib.use('Agg')",
        "import matplotlib.pyplot as plt\nplt.switch_backend('agg')",
        "import matplotlib.pyplot as plt\nplt.ion()",
        "import matplotlib.pyplot as plt\nwith plt.ion():\n    plt.plot([1])",
    ],
)
def test_matplotlib_has_its_backends(plots: Session, source: str) -> None:
    plots.exec(source).unwrap()


@pytest.mark.parametrize("ahead", [True, False])
def test_figures_are_shown_where_the_code_says_so(ahead: bool) -> None:
    keywords = {} if ahead else {"preload": []}
    with Session(dependencies=["matplotlib"], timeout_sec=60, **keywords) as s:  # type: ignore[arg-type]
        outcome = s.exec(
            "import matplotlib.pyplot as plt\nplt.plot([1])\nplt.show()\ndisplay('between')\n"
            "plt.plot([2]);"
        )
        assert outcome.ok and outcome.stderr == "", outcome
        assert ["image/png" in one for one in outcome.display] == [True, False, True]
