"""One set however it is spelled; what is no name with a version is refused in a sentence."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

import hutch
from hutch._requirements import (
    _two_keys,
    inline_dependencies,
    inline_metadata,
    normalize,
)


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


names = st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,8}([-_.][A-Za-z0-9]{1,5})?", fullmatch=True)


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
        ("# /// script\n# dependencies = 3\n# ///", "no list"),
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
