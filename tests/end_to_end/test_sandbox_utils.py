# SPDX-License-Identifier: Apache-2.0
"""`sandbox_utils` inside: there for everybody who imports it, and for nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import hutch
from hutch import Session, sandbox


@pytest.fixture(scope="module")
def s() -> Iterator[Session]:
    with Session(cwd="/tmp/project", files={"a.txt": "one\ntwo\n"}) as session:
        session.exec("import os, sys")
        yield session


def test_a_function_has_it() -> None:
    @sandbox
    def count(text: str) -> dict[str, int]:
        import importlib  # an import statement would bring the one that tests of the worker import

        u = importlib.import_module("sandbox_utils")
        u.echo(text, to="f")
        return dict(u.wc("f"))

    assert count("a b")["words"] == 2


@pytest.mark.parametrize("isolation", ["cell", "shared", "container"])
def test_a_program_has_it(isolation: Any) -> None:
    """In a directory of its own: a shared cell has what programs before left in the common one."""
    text = (
        "import uuid\nfrom sandbox_utils import *\nown = uuid.uuid4().hex\nmkdir(own)\n"
        "touch(f'{own}/b', f'{own}/a')\nprint(ls(own), [p[33:] for p in find(own)])"
    )
    outcome = hutch.run(text, isolation=isolation)
    assert outcome.stdout == "['a', 'b'] ['a', 'b']\n", outcome


def test_what_it_gives_is_data(s: Session) -> None:
    assert s.exec("from sandbox_utils import *\nls(long=True)[0]['type']").unwrap() == "file"
    assert s.exec("list(grep('o$', '.', recursive=True))").unwrap() == [("a.txt", 2, "two")]
    assert s.exec("tree()").unwrap() == "./\n└── a.txt"
    assert s.exec("csv_to_json(text='a\\n1')").value is None  # it is shown: a generator is no data
    assert s.exec("list(_)").unwrap() == [{"a": "1"}]


def test_nothing_of_it_is_there_before_it_is_imported() -> None:
    text = "import sys\nprint([name for name in sys.modules if 'sandbox_utils' in name])"
    assert hutch.run(text).stdout == "[]\n"


def test_it_is_confined_to_the_directory_that_the_session_began_in(s: Session) -> None:
    s.exec("os.chdir('/tmp')")
    wrong = s.exec("import sandbox_utils\nsandbox_utils.ls('.')")
    assert wrong.error is not None and wrong.error.type == "PermissionError"
    assert wrong.error.message == "'.' is outside of /tmp/project: outside=True allows it"
    assert wrong.error.line == 2 and wrong.error.traceback.count("  File ") == 1
    assert s.exec("sandbox_utils.cat('/tmp/project/a.txt')").value == "one\ntwo\n"
    assert s.exec("os.chdir('/tmp/project')\nsandbox_utils.ls()").value == ["a.txt"]


def test_it_stays_confined_after_a_restart() -> None:
    with Session(cwd="/tmp/project", files={"a.txt": ""}) as s:
        s.exec("import os; os._exit(3)")
        assert s.exec("import sandbox_utils as u\nu.ls()").value == ["a.txt"]
        assert s.exec("u.ls('..')").status == "raised"


def test_a_module_of_the_code_s_own_comes_first() -> None:
    with Session(files={"sandbox_utils.py": "mine = True"}) as s:
        assert s.exec("import sandbox_utils\nsandbox_utils.mine").value is True
        assert s.exec("import sandbox_utils._paths").error.type == "ModuleNotFoundError"


def test_directories_that_cannot_be_read_are_reported_and_passed_over(s: Session) -> None:
    s.exec("mkdir('d/shut', 'd/open', parents=True)\ntouch('d/open/f')\nos.chmod('d/shut', 0)")
    found = s.exec("list(find('d', type='file'))")
    assert found.value == ["d/open/f"] and found.stderr == "find: d/shut: Permission denied\n"
    s.exec("remove_tree('d')")
    assert s.files.exists("d/shut")  # nothing that cannot be looked at is removed
    s.exec("os.chmod('d/shut', 0o700)\nremove_tree('d')").unwrap()
    assert not s.files.exists("d")


def test_documents_that_would_fill_the_memory_are_refused(s: Session) -> None:
    bomb = "<!DOCTYPE a [<!ENTITY a 'ha'>" + "".join(
        f"<!ENTITY {chr(98 + i)} '{f'&{chr(97 + i)};' * 50}'>" for i in range(9)
    )
    s["bomb"] = f"{bomb}]><a>&j;</a>"
    assert s.exec("xml_to_dict(text=bomb)").error.message.startswith("the XML has a document type")
    s.exec("open('long', 'wb').write(b'x' * (40 << 20))")
    assert s.exec("[len(line) for line in head('long')]").value[0] < 17 << 20
    assert s.exec("cat('long')").error.type == "ValueError"


def test_forks_have_it(s: Session) -> None:
    text = (
        "import multiprocessing\n"
        "def look(_):\n    import sandbox_utils\n    return sandbox_utils.ls()\n"
        "with multiprocessing.get_context('fork').Pool(1) as pool: found = pool.map(look, [0])\n"
        "'a.txt' in found[0]"
    )
    assert s.exec(text).unwrap() is True
