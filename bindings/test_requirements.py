# SPDX-License-Identifier: Apache-2.0
"""One set however it is spelled; what is no name with a version is refused in a sentence."""

from __future__ import annotations

import random
import re
import sys
import time
from typing import Any

import pytest
from hypothesis import given, strategies as st

import hutch
from hutch._distributions import NO_PROJECTS
from hutch._options.lock import is_pylock, of_lines
from hutch._options.requirements import (
    _blocks,
    _two_keys,
    inline_dependencies,
    inline_metadata,
    normalize,
)
from hutch._options.requirements_file import lines_of
from hutch.cli.run import _decoded

IMPORTED = {name.lower() for name in (*NO_PROJECTS, *sys.stdlib_module_names)}


@pytest.mark.parametrize(
    "spelled",
    [
        ["pandas>=2", "scikit-learn"],
        ["Scikit_Learn", "Pandas >= 2"],
        ["  pandas>=2  ", "scikit.learn", "PANDAS>=2"],
        ("pandas >=2", "scikit--learn"),
    ],
)
def test_order_spelling_spaces_and_repetition_make_no_difference(spelled: list[str]) -> None:
    assert normalize(spelled) == ("pandas>=2", "scikit-learn")


def test_extras_specifiers_and_markers_are_put_in_order() -> None:
    one = normalize(["Foo[b, A] <3 , >=1 ; python_version<'3.13'"])
    assert one == normalize(['foo[a,b]>=1,<3; python_version < "3.13"'])
    assert one == ('foo[a,b]<3,>=1; python_version < "3.13"',)


names = st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,8}([-_.][A-Za-z0-9]{1,5})?", fullmatch=True).filter(
    lambda name: name.lower() not in IMPORTED
)


@given(st.lists(names, max_size=6), st.randoms(use_true_random=False))
def test_normalizing_twice_or_shuffled_changes_nothing(
    items: list[str], rng: random.Random
) -> None:
    once = normalize(items)
    shuffled = [item.upper() for item in items]
    rng.shuffle(shuffled)
    assert normalize(once) == once == normalize(shuffled)


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ("a_", "letter or digit"),
        ("-r requirements.txt", "option"),
        ("--index-url=x", "option"),
        ("-e .", "option"),
        ("git+https://example.org/x.git", "repository"),
        ("x @ git+ssh://git@example.org/x", "repository"),
        ("x @ https://example.org/x.whl", "URL"),
        ("https://example.org/x.whl", "URL"),
        ("x @ file:///etc/passwd", "URL"),
        ("./local", "path"),
        ("/etc/passwd", "path"),
        ("~/x", "path"),
        ("..", "path"),
        ("a/b", "path"),
        ("c:\\x", "path"),
        ("x.whl", "file"),
        ("requirements.txt", "file"),
        ("pandas\n-r x", "line break"),
        ("pandas\x00", "control character"),
        ("", "empty"),
        ("   ", "empty"),
        ("pandas==", "cannot read"),
        ("pandas numpy", "cannot read"),
        ("pandas>=two", "cannot read"),
        ("!", "cannot read"),
        (";", "cannot read"),
        ("x" * 1001, "longer"),
    ],
)
def test_what_is_no_name_with_a_version_is_refused_in_a_sentence(item: str, says: str) -> None:
    with pytest.raises(hutch.DependencyInstallError, match=says) as caught:
        normalize([item])
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("item", [3, None, b"pandas", ["pandas"]])
def test_what_is_no_text_is_a_type_error(item: object) -> None:
    with pytest.raises(TypeError, match="str"):
        normalize([item])


@given(st.text(max_size=40))
def test_any_text_is_normalized_or_refused_by_our_own_error(text: str) -> None:
    try:
        (one,) = normalize([text])
    except hutch.RequirementError:
        return
    assert normalize([one]) == (one,)
    assert "\n" not in one and "://" not in one.split(";")[0] and not one.startswith("-")


SCRIPT = """\
#!/usr/bin/env python
# /// script
# requires-python = ">=3.8"
# dependencies = [
#   "Pandas>=2",  # the tables
#   "rich[extra]",
# ]
# ///
import pandas
"""


def test_a_scripts_own_metadata_is_read() -> None:
    assert inline_metadata(SCRIPT) == {
        "requires-python": ">=3.8",
        "dependencies": ["Pandas>=2", "rich[extra]"],
    }
    assert inline_dependencies(SCRIPT) == ("pandas>=2", "rich[extra]")
    assert inline_metadata("import pandas") is None


def test_the_reader_for_old_pythons_reads_the_same() -> None:
    text = 'requires-python = ">=3.8"\ndependencies = [\n  "a>=2",  # x\n  "b[c]",\n]\n'
    assert _two_keys(text) == {"requires-python": ">=3.8", "dependencies": ["a>=2", "b[c]"]}


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("print()", "no `# /// script` block"),
        ("# /// script\n# dependencies = 3\n# ///", "not a list"),
        ("# /// script\n# dependencies = ['-r x']\n# ///", "option"),
        ("# /// script\n# requires-python = '>=99'\n# ///", "requires Python"),
        (
            "# /// script\n# dependencies = []\n# ///\n\n# /// script\n# dependencies = []\n# ///",
            "more than one",
        ),
    ],
)
def test_metadata_that_cannot_be_followed_is_refused(source: str, says: str) -> None:
    with pytest.raises(hutch.RequirementError, match=says):
        inline_dependencies(source)


@pytest.mark.parametrize(
    ("name", "project"),
    [("sklearn", "scikit-learn"), ("cv2", "opencv-python-headless"), ("PIL", "pillow")],
)
def test_a_name_that_is_only_imported_is_answered_by_its_project(name: str, project: str) -> None:
    with pytest.raises(hutch.RequirementError, match=project) as caught:
        normalize([name + ">=1"])
    assert project in caught.value.hint
    assert normalize([project]) == (project,)


@pytest.mark.parametrize("name", ["json", "asyncio", "xml", "UU", "Queue"])
def test_a_part_of_python_is_no_dependency(name: str) -> None:
    with pytest.raises(hutch.RequirementError, match="part of Python"):
        normalize([name])
    assert normalize([f'{name}; python_version < "3"'])  # a backport, for Pythons that lack it
    assert normalize([f"{name}>=1"]), "a project of that name, as in a list of pip freeze"


def block(body: str) -> str:
    return "# /// script\n" + "".join(f"# {line}\n" for line in body.split("\n")) + "# ///\n"


MEGABYTE = 1 << 20
HOSTILE_SCRIPTS = {
    "openings": "# /// x\n" * (MEGABYTE // 8),
    "openings of scripts": "# /// script\n# a\n" * (MEGABYTE // 17),
    "comments": "# \n" * (MEGABYTE // 3),
    "closings": "# /// script\n" + "# ///\n" * (MEGABYTE // 6),
    "long": block("#" * MEGABYTE),
    "brackets": block("a=" + "[" * 60_000),
    "tables": block("a=" + "{a=" * 20_000),
    "dots": block(".".join("a" * 30_000) + "=1"),
    "dots in a header": block("[" + " . ".join("a" * 15_000) + "]"),
    "quoted dots": block(".".join(['"a"'] * 15_000) + "=1"),
    "escapes": block('dependencies=["' + "\\\\" * 30_000),
    "quotes": block('"""' * 20_000),
    "digits": block("a=" + "9" * 60_000),
    "spaces": block("a" + " " * 60_000 + "b"),
    "parentheses": block('dependencies=["a; ' + "(" * 900 + '"]'),
    "python": block('requires-python=">=' + "1." * 30_000 + '"'),
    "python's digits": block('requires-python=">=' + "9" * 30_000 + '"'),
    "keys": block("dependencies = [\n" * 3000),
}


@pytest.mark.parametrize("name", HOSTILE_SCRIPTS)
def test_a_hostile_script_is_read_in_a_moment_or_refused(name: str) -> None:
    script = HOSTILE_SCRIPTS[name]
    begun = time.process_time()
    try:
        inline_metadata(script)
        inline_dependencies(script)
    except hutch.RequirementError:
        pass
    assert time.process_time() - begun < 30  # quadratic: minutes to hours


@pytest.mark.parametrize("text", [HOSTILE_SCRIPTS[n].replace("# ", "") for n in ("keys", "digits")])
def test_without_a_reader_of_toml_it_is_the_same(text: str) -> None:
    begun = time.process_time()
    for hostile in (
        text,
        'dependencies = ["a", ' + "#" * 60_000 + '"\n]',
        "dependencies = " + "[" * 9999 + "]",
    ):
        try:
            _two_keys(hostile)
        except hutch.RequirementError:
            pass
    assert time.process_time() - begun < 30


def test_blocks_are_found_as_the_reference_finds_them() -> None:
    reference = re.compile(
        r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$"
    )
    parts = ["# /// script", "# /// x", "# ///", "#", "# a = 1", "x = 1", "", "# /// a b", "#x"]
    rng = random.Random(20240229)
    for _ in range(5000):
        source = "\n".join(rng.choice(parts) for _ in range(rng.randrange(12)))
        found = reference.finditer(source + "\n")
        expected = [(match["type"], match["content"].splitlines()) for match in found]
        assert list(_blocks(source)) == expected


def test_lines_of_a_file_are_read_in_a_moment() -> None:
    begun = time.process_time()
    assert lines_of(" " * MEGABYTE + "a") == ["a"]
    assert lines_of("a" + " " * MEGABYTE + "#c\n#\n b#c # d") == ["a", "b#c"]
    assert not is_pylock("\n" * MEGABYTE)
    with pytest.raises(hutch.RequirementError):
        of_lines(["a==1" + " " * MEGABYTE + "-"], "x")
    with pytest.raises(hutch.RequirementError):
        normalize(["a" + " " * MEGABYTE + "@"], urls=True)
    with pytest.raises(hutch.RequirementError, match=r"nested too deeply|cannot read"):
        normalize(["a; " + "(" * 900])
    for line in ("No module named '", "a", "Traceback (most recent call last):\n", " "):
        hutch.explain(line * (MEGABYTE // len(line)))
    assert time.process_time() - begun < 30


def test_a_script_in_an_encoding_that_is_slow_to_read_is_refused() -> None:
    for name in ("punycode", "idna"):
        with pytest.raises(ValueError, match="encoding"):
            _decoded(f"# coding: {name}\n".encode() + b"a" * 1000)
    assert _decoded("# coding: latin-1\nx = 'ü'".encode("latin-1")).endswith("'ü'")


@pytest.mark.parametrize(
    "make",
    [
        lambda url: hutch.sandbox(dependencies=[f"x @ {url}/x.whl"]),
        lambda url: hutch.sandbox(dependencies=[f"--index-url={url}"]),
        lambda url: hutch.sandbox(dependencies=[f"x {url}\n"]),
        lambda url: hutch.sandbox(dependencies=[f"git+{url}/x"]),
        lambda url: hutch.sandbox(allow_network=[url]),
    ],
)
def test_an_error_names_an_address_without_its_credentials(make: Any) -> None:
    for secret in ("user:pa55word", "pa55word", "user:pa55@word"):
        with pytest.raises(ValueError) as caught:
            make(f"https://{secret}@example.org")
        assert "pa55" not in str(caught.value) and "word@" not in str(caught.value)
        assert "***@example.org" in str(caught.value)
