# SPDX-License-Identifier: Apache-2.0
"""What the words of a command line mean, before anything runs; what tables show."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from hutch import PoolStatus, Secret, cli
from hutch.cli import docs, run, top
from hutch.cli.parser import COMMANDS, parser_and_flags

ROOT = Path(__file__).parents[1]


def keywords(*words: str) -> dict[str, Any]:
    parser, flags = parser_and_flags()
    ours, _ = run.divided(list(words), flags)
    return run._keywords(parser.parse_args(["run", *ours]), "")


@pytest.mark.parametrize(
    ("words", "own", "name", "arguments"),
    [
        (["p.py", "-v", "--env", "X"], 0, "p.py", ["-v", "--env", "X"]),
        (["--memory", "9", "p.py", "--json"], 2, "p.py", ["--json"]),
        (["--memory=9", "--json", "p.py"], 2, "p.py", []),
        (["--allow-private-index", "p.py", "-c"], 1, "p.py", ["-c"]),
        (["p.py", "--", "-v", "--"], 0, "p.py", ["-v", "--"]),
        (["p.py", "a", "--", "b"], 0, "p.py", ["a", "--", "b"]),
        (["--", "-m"], 0, "-m", []),
        (["--env", "-c", "p.py"], 2, "p.py", []),
    ],
)
def test_the_program_begins_at_the_first_word_that_is_no_option(
    words: list[str],
    own: int,
    name: str,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "_content", lambda path: b"1")
    ours, rest = run.divided(words, parser_and_flags()[1])
    assert len(ours) == own
    assert run._program(rest) == ("1", name, arguments, False)


def test_code_and_modules_take_the_place_of_a_script() -> None:
    for words in (["-c", "1 / 0", "-m"], ["-c1 / 0", "-m"]):
        assert run._program(words) == ("1 / 0", "-c", ["-m"], False)
    assert run._program(["-c", ""]) == ("", "-c", [], False)
    assert run._program(["-c", "'ä'"]).source == "'ä'"
    with pytest.raises(ValueError, match="UTF-8"):
        run._program(["-c", "'\udcff'"])
    source, *rest = run._program(["-m", "a'b.c", "x"])
    assert '"a\'b.c"' in source and rest == ["-m", ["x"], False]


HINTS = [
    (
        'add dependencies=["pyyaml"], if it is a package; add modules=["yaml"] if it is yours',
        'add --with "pyyaml", if it is a package; add --file yaml.py if it is yours',
    ),
    ("raise it, for instance timeout_sec=0.6", "raise it, for instance --timeout 0.6"),
    ("raise it, for instance memory_mb=128", "raise it, for instance --memory 128"),
    ("raise it, for instance pids=128", "raise it, for instance pids=128 in a file for --policy"),
    ("the program asks for input: give it stdin=", "pipe it in, or give it by < FILE"),
    ("a list has no end", "a list has no end"),
]


@pytest.mark.parametrize(("hint", "shown"), HINTS)
def test_hints_name_the_options_of_the_command(hint: str, shown: str) -> None:
    assert run.in_options(hint).endswith(shown)


@pytest.mark.parametrize("words", [[], ["--"], ["-c"], ["-m"]])
def test_a_program_that_is_missing_is_said(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", *words]) == cli.MISUSED
    assert "-c CODE" in capsys.readouterr().err


def test_options_become_keywords_and_what_is_not_given_is_the_policys() -> None:
    assert keywords() == {"dependencies": []}
    words = ["--policy", "strict", "--allow-network", "a.org", "--allow-network", "*.b.org:81"]
    assert keywords(*words, "--timeout", "0", "--cpus", "2", "--env", "A=b=c", "p.py") == {
        "dependencies": [],
        "policy": "strict",
        "allow_network": ["a.org", "*.b.org:81"],
        "timeout_sec": None,
        "cpus": 2.0,
        "env": {"A": "b=c"},
    }


def test_a_secret_is_a_variable_of_the_host() -> None:
    given = keywords("--secret", "a.org:X-Key=KEY", "--secret", "a.org:Authorization=Bearer TOKEN")
    assert given["secrets"] == {
        "a.org": {
            "X-Key": Secret.from_env("KEY"),
            "Authorization": Secret.from_env("TOKEN", "Bearer "),
        }
    }


@pytest.mark.parametrize("text", ["TOKEN", "a.org:X=", "a.org:=TOKEN", ":X=TOKEN"])
def test_a_secret_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:HEADER=VARIABLE"):
        keywords("--secret", text)


def test_an_option_of_run_is_not_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--mem", "9", "p.py"]) == cli.MISUSED
    assert "unrecognized arguments: --mem" in capsys.readouterr().err


MISTAKES = [
    (["nonsense"], "hutch: error: argument COMMAND: invalid choice: 'nonsense'"),
    (["completion"], "hutch completion: error: the following arguments are required: shell"),
    (["run", "--timout", "3", "p.py"], "hutch run: error: unrecognized arguments: --timout; did"),
    (
        ["prune", "--dryrun"],
        "hutch prune: error: unrecognized arguments: --dryrun; did you mean --",
    ),
    (["prune", "--older-than", "5"], "hutch prune: error: argument --older-than: '5' is not a"),
    (["env", "remove"], "hutch env remove: name at least one DIGEST"),
    (["sessions", "delete"], "hutch sessions delete: give the id of a session"),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES)
def test_a_mistake_is_said_once_and_as_json_where_that_is_asked_for(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == cli.MISUSED
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-1].startswith(said) and shown.out == ""
    assert cli.main(["--json", *words]) == cli.MISUSED
    assert json.loads(capsys.readouterr().out)["message"].startswith(said)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_a_command_does_with_an_example(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    text = COMMANDS[name].text
    assert end.value.code == 0 and f"{text[0].upper()}{text[1:]}. " in shown
    assert f" example: hutch {name} " in f"{shown} "
    page = COMMANDS[name].page
    assert shown.endswith(f" more: hutch docs {page}") and page in docs.names()


def test_the_pages_are_installed_with_their_titles(capsys: pytest.CaptureFixture[str]) -> None:
    of_tree = {page.stem: page.read_text() for page in (ROOT / "docs").glob("*.md")}
    assert cli.main(["docs", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {one["page"]: one["title"] for one in listed} == {
        name: text.splitlines()[0].removeprefix("# ") for name, text in of_tree.items()
    }
    for name, text in of_tree.items():
        assert cli.main(["docs", name]) == 0
        assert capsys.readouterr().out == text, f"{name} is not installed as it is: make install"


def test_each_command_has_its_function() -> None:
    assert cli.FUNCTIONS.keys() == COMMANDS.keys()
    for place in cli.FUNCTIONS.values():
        module, _, name = place.partition(".")
        assert callable(getattr(importlib.import_module(f"hutch.cli.{module}"), name))


def test_the_page_names_every_command() -> None:
    table = (ROOT / "docs" / "command-line.md").read_text().partition("\n## ")[0]
    assert [name for name in COMMANDS if f"`{name}`" not in table.replace("`hutch ", "`")] == []


def pool(**fields: Any) -> PoolStatus:
    """A pool without calls and workers, but for these fields."""
    numbers = (
        "slots ready depth leased sessions waiting calls calls_per_sec refused cells_made "
        "worker_starts worker_failures rotations start_failures"
    )
    made: Any = {
        **dict.fromkeys(numbers.split(), 0),
        **dict.fromkeys(["hit_rate", "p50_ms", "p99_ms"]),
        "key": "",
        "digest": "",
        "requirements": [],
        "labels": {},
        "outcomes": {},
        "memory_mb": 1024,
        "isolation": "cell",
        "workers": [],
        "last_failure": "",
        **fields,
    }
    assert set(made) == set(PoolStatus.__annotations__)
    return made  # type: ignore[no-any-return]


def shown(*pools: PoolStatus) -> list[list[str]]:
    return top.rows({"running": True, "pools": list(pools)})


def test_a_table_tells_pools_of_one_environment_apart() -> None:
    one = pool(workers=["a"], labels={"team": "a\x1b", "run": "1"})
    rows = shown(one, pool(workers=["b"], memory_mb=64, isolation="container"))
    assert [row[:5] for row in rows] == [
        ["(no packages)", "1024", "cell", "team=a\\x1b run=1", "1"],
        ["(no packages)", "64", "container", "-", "1"],
    ]


def test_a_table_forgets_a_pool_that_nobody_uses() -> None:
    assert shown(pool(calls=9, last_failure="gone")) == []
    for used in ({"workers": ["a"]}, {"waiting": 1}, {"start_failures": 1}, {"p50_ms": 0.1}):
        assert len(shown(pool(**used))) == 1, used
