# SPDX-License-Identifier: Apache-2.0
"""What an error of JavaScript shows, and what it says to do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hutch
from hutch import Session
from hutch._node_hints import ROWS, node_hint

HAPPENS = {
    "missing module": [
        ("require('nope')", "node_dependencies="),
        ("import x from 'nope'", "node_dependencies="),
    ],
    "missing file": [("require('./nope')", "paths begin at the working directory")],
    "program of npm": [
        ("require('child_process').execSync('npx eslint')", "without npx"),
        ("throw require('child_process').spawnSync('npm', ['i']).error", "without npx"),
    ],
    "no program": [("throw require('child_process').spawnSync('ffmpeg').error", "no such program")],
    "no resolver": [
        ("await fetch('https://example.org/')", "no network"),
        ("await require('dns').promises.lookup('example.org')", "no network"),
    ],
    "nothing listens": [("await fetch('http://127.0.0.1:4567/')", "loopback of its own")],
    "no network": [("await fetch('http://192.0.2.1/')", "no network")],
    "no page": [("document.title", "jsdom")],
    "HTML for JSON": [("JSON.parse('<!DOCTYPE html>')", "HTML page")],
    "read-only": [("require('fs').writeFileSync('/usr/x', '')", "only the working directory")],
    "no file": [("require('fs').readFileSync('nope.txt')", "no such file")],
    "watching": [("require('fs').watch('.')", "fs.watchFile")],
}
PRINTED = {
    "script of a package": [
        "Error: Cannot find module '/node_modules/bcrypt/lib/binding/napi-v3/bcrypt_lib.node'",
        "Error: Could not locate the bindings file. Tried:",
        'Error: Could not load the "sharp" module using the linux-x64 runtime',
    ],
    "browser": ["Error: Could not find Chrome (ver. 1). 1. you did not perform an installation"],
    "fetch": ["TypeError: fetch failed"],
    "heap": ["FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory"],
    "module or not": ["ReferenceError: require is not defined in ES module scope, you can use"],
    "no module": ["SyntaxError: Cannot use import statement outside a module"],
}


@pytest.fixture(scope="module")
def s() -> Iterator[Session]:
    with Session(memory_mb=512, timeout_sec=60) as session:
        yield session


def test_every_row_has_an_example() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names) and set(names) == HAPPENS.keys() | PRINTED.keys()


@pytest.mark.parametrize(
    ("name", "source", "says"), [(name, *one) for name, found in HAPPENS.items() for one in found]
)
def test_an_error_has_its_hint(s: Session, name: str, source: str, says: str) -> None:
    outcome = s.node(source)
    assert outcome.status == "raised" and outcome.error is not None
    row = next(row for row in ROWS if row.name == name)
    assert outcome.error.hint == row.hint and says in row.hint, outcome.text
    assert outcome.text.endswith(f"hint: {row.hint}")
    assert hutch.explain(outcome.error.traceback).hint in (row.hint, "")


@pytest.mark.parametrize(
    ("name", "text"), [(name, one) for name, found in PRINTED.items() for one in found]
)
def test_what_is_printed_has_its_hint(name: str, text: str) -> None:
    row = next(row for row in ROWS if row.name == name)
    assert node_hint(text) == hutch.explain(text).hint == row.hint
    assert node_hint(text, has_network=True) == row.with_network or row.hint


def test_an_error_of_ones_own_has_none(s: Session) -> None:
    outcome = s.node("throw new Error('of my own')")
    assert outcome.error is not None and outcome.error.hint == ""


def test_a_program_has_them_too() -> None:
    outcome = hutch.run("require('nope')", language="javascript")
    assert outcome.status == "died" and "node_dependencies=" in outcome.text
    with pytest.raises(hutch.SandboxDied) as error:
        outcome.unwrap()
    assert "node_dependencies=" in error.value.hint
    plain = hutch.run("process.exit(3)", language="javascript")
    assert plain.exit_code == 3 and "hint" not in plain.text


@pytest.mark.parametrize(
    ("source", "shown", "line"),
    [
        (
            "throw new Error('outer', {cause: new TypeError('inner')})",
            "Error: outer\n    at cell-N.js:1:7 {\n"
            "  [cause]: TypeError: inner\n      at cell-N.js:1:34\n}",
            1,
        ),
        (
            "const e = new Error('x')\ne.status = 404; e.body = {a: 1}\nthrow e",
            "Error: x\n    at cell-N.js:1:11 {\n  status: 404,\n  body: { a: 1 }\n}",
            1,
        ),
        ("const a = 1;\nconst b = ;", "cell-N.js:2\nconst b = ;\n          ^\nSyntaxError: ", 2),
        (
            "await Promise.any([Promise.reject(new Error('a'))])",
            "[errors]: [\n    Error: a\n",
            None,
        ),
        ("import {nope} from 'node:fs'", "'node:fs' does not provide an export named 'nope'", None),
        ("import nope from 'data:text/javascript,1'", "an export named 'default'", None),
    ],
)
def test_an_error_is_shown_as_node_shows_it(
    s: Session, source: str, shown: str, line: int | None
) -> None:
    outcome = s.node(source)
    assert outcome.error is not None
    name = f"cell-{s.node('new Error().stack').unwrap().split('cell-')[1].split('.')[0]}.js"
    ran = name.replace(name[5:-3], str(int(name[5:-3]) - 1))
    assert shown.replace("cell-N.js", ran) in outcome.text, outcome.text
    assert outcome.error.line == line


def test_names_that_are_there_are_imported(s: Session) -> None:
    source = "import fs, {readFileSync as read, 'writeFileSync' as write} from 'node:fs'"
    assert (
        s.node(f"{source}; [typeof fs.stat, typeof read, typeof write]").value == ["function"] * 3
    )
    assert s.node("import {default as os} from 'node:os'; typeof os.cpus").value == "function"
    assert s.node("import * as all from 'node:os'; typeof all.cpus").value == "function"


def test_what_node_starts_finds_node_and_the_programs_of_packages() -> None:
    files = {"t.test.js": "it('runs', () => {})"}
    with Session(node_dependencies=["mocha@11"], files=files, timeout_sec=60) as s:
        told = s.node("require('child_process').execSync('node -p 6*7; mocha t.test.js') + ''")
        assert told.unwrap().startswith("42\n") and "1 passing" in told.value
        s.bash("export PATH=/usr/bin:/bin").unwrap()
        assert s.node("require('child_process').execSync('node -p 6*7') + ''").value == "42\n"
    source = "console.log(require('child_process').execSync('node -p 6*7') + '')"
    assert hutch.run(source, language="javascript").stdout == "42\n\n"


def test_an_error_that_fails_to_show_itself_is_shown_by_its_stack(s: Session) -> None:
    fails = "e[require('util').inspect.custom] = () => { throw new Error('never') }"
    outcome = s.node(f"const e = new RangeError('shown')\n{fails}\nthrow e")
    assert outcome.error is not None
    assert (outcome.error.type, outcome.error.message, outcome.error.line) == (
        "RangeError", "shown", 1)  # fmt: skip
    assert outcome.error.traceback.startswith("RangeError: shown\n    at cell-")
