# SPDX-License-Identifier: Apache-2.0
"""sandbox_utils: files, directories, and what is outside. It runs here, without a sandbox."""

from __future__ import annotations

import datetime
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sandbox_utils as u  # type: ignore[import-not-found,unused-ignore]
from sandbox_utils import _paths  # type: ignore[import-not-found,unused-ignore]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "work"
    place.mkdir()
    (tmp_path / "secret.txt").write_text("secret\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setattr(_paths, "ROOT", os.path.realpath(place))
    return place


def make(**contents: str) -> None:
    """Files by their names, in which __ stands for a slash."""
    for name, text in contents.items():
        path = Path(name.replace("__", "/"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def project() -> None:
    make(a__one="1", a__b__two="22", a__b__c__three="333", four="")
    os.rename("four", "four.py")
    Path(".hidden").write_text("h")
    os.symlink("a", "link")
    os.symlink("..", "a/up")  # a circle


# ---- what is outside


USES: dict[str, Callable[[str], Any]] = {
    "find": lambda path: list(u.find(path)),
    "newer": lambda path: list(u.find(".", newer=path)),
    "walk": lambda path: list(u.walk(path)),
    "tree": u.tree,
    "ls": u.ls,
    "copy_tree from": lambda path: u.copy_tree(path, "copy"),
    "copy_tree to": lambda path: u.copy_tree("d", path),
    "remove_tree": u.remove_tree,
    "grep": lambda path: list(u.grep("x", path)),
    "sed": lambda path: u.sed("x", "y", path),
    "sed in place": lambda path: u.sed("x", "y", path, in_place=True),
    "head": u.head,
    "tail": u.tail,
    "wc": u.wc,
    "diff": lambda path: u.diff(path, "f"),
    "cat": u.cat,
    "touch": u.touch,
    "mkdir": u.mkdir,
    "rm": u.rm,
    "cp from": lambda path: u.cp(path, "copy"),
    "cp to": lambda path: u.cp("f", path),
    "mv from": lambda path: u.mv(path, "moved"),
    "mv to": lambda path: u.mv("f", path),
    "echo": lambda path: u.echo("x", to=path),
    "csv_to_json": lambda path: list(u.csv_to_json(path)),
    "json_to_csv": u.json_to_csv,
    "json_to_csv to": lambda path: u.json_to_csv([], path),
    "xml_to_dict": u.xml_to_dict,
}
OF_LINKS = ("rm", "mv from", "remove_tree", "mv to")  # which act on the link itself


@pytest.mark.parametrize("use", USES)
def test_what_is_outside_is_refused_and_said_how_to_allow(use: str, tmp_path: Path) -> None:
    make(f="x\n", d__f="x\n")
    outside = ["../secret.txt", "../elsewhere/new", str(tmp_path / "secret.txt"), "d/../../x", "/"]
    for number, path in enumerate(outside[:2]):
        os.symlink(path, f"link{number}")
        if use not in OF_LINKS:
            outside.append(f"link{number}")
    for path in outside:
        with pytest.raises(PermissionError, match=r"is outside of .*: outside=True allows it"):
            USES[use](path)
    assert (tmp_path / "secret.txt").read_text() == "secret\n"
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "secret.txt", "work"]
    assert os.listdir(tmp_path / "elsewhere") == []


def test_what_is_outside_can_be_allowed(tmp_path: Path) -> None:
    assert u.cat("../secret.txt", outside=True) == "secret\n"
    assert u.cp("../secret.txt", ".", outside=True) == "./secret.txt"
    u.rm(tmp_path / "secret.txt", outside=True)
    assert os.listdir() == ["secret.txt"] and not (tmp_path / "secret.txt").exists()


def test_a_link_out_is_removed_and_moved_itself(tmp_path: Path) -> None:
    os.symlink("../elsewhere", "link")
    u.mv("link", "moved")
    u.rm("moved")
    assert os.listdir() == [] and (tmp_path / "elsewhere").is_dir()


def test_nothing_is_written_through_a_link_that_a_copy_meets(tmp_path: Path) -> None:
    make(a__secret="new", b__x="")
    os.symlink("../../secret.txt", "b/secret")
    with pytest.raises(PermissionError):
        u.cp("a/secret", "b")
    u.copy_tree("a", "b", overwrite=True)
    assert Path("b/secret").read_text() == "new" and not os.path.islink("b/secret")
    assert (tmp_path / "secret.txt").read_text() == "secret\n"
    make(c__d__f="new")
    os.makedirs("e")
    os.symlink("../../elsewhere", "e/d")
    with pytest.raises(FileExistsError):
        u.copy_tree("c", "e", overwrite=True)
    assert os.listdir(tmp_path / "elsewhere") == []


def test_what_is_written_within_is_below_the_root_of_the_session(here: Path) -> None:
    os.makedirs("below")
    os.chdir("below")
    make(f="x")
    assert u.ls("..") == ["below"] and u.cat(here / "below" / "f") == "x"


@pytest.mark.parametrize(("path", "kind"), [("", ValueError), (b"f", TypeError), (3, TypeError)])
def test_a_path_is_text_or_a_path(path: Any, kind: type[Exception]) -> None:
    for use in (u.cat, u.ls, u.rm, lambda path: u.grep("x", path)):
        with pytest.raises((kind, TypeError)):
            use(path)


# ---- going through directories


def test_find_gives_everything_below_by_name(project: None) -> None:
    assert list(u.find()) == [
        ".hidden", "a", "a/b", "a/b/c", "a/b/c/three", "a/b/two", "a/one", "a/up", "four.py",
        "link",
    ]  # fmt: skip
    assert list(u.find("a/b/")) == ["a/b/c", "a/b/c/three", "a/b/two"]
    assert list(u.find("link", name="t*")) == ["link/b/c/three", "link/b/two"]  # it was named
    assert list(u.find("four.py")) == ["four.py"]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"name": "*.py"}, ["four.py"]),
        ({"name": "FOUR*"}, []),
        ({"name": "FOUR*", "ignore_case": True}, ["four.py"]),
        ({"type": "link"}, ["a/up", "link"]),
        ({"type": "d"}, ["a", "a/b", "a/b/c"]),
        ({"type": "file", "min_size": 2}, ["a/b/c/three", "a/b/two"]),
        ({"max_size": 0}, ["four.py"]),
        ({"max_depth": 1, "type": "file"}, [".hidden", "four.py"]),
        ({"max_depth": 2, "name": "*o*"}, ["a/one", "four.py"]),
    ],
)
def test_find_gives_what_is_wanted(project: None, wanted: Any, found: list[str]) -> None:
    assert list(u.find(".", **wanted)) == found


def test_find_compares_times(project: None) -> None:
    os.utime("a/one", (1_000_000, 1_000_000))
    os.utime("a/b/two", (3_000_000, 3_000_000))
    make(stamp="")
    os.utime("stamp", (2_000_000, 2_000_000))
    moment = datetime.datetime.fromtimestamp(2_000_000, datetime.timezone.utc)
    for when in ("stamp", Path("stamp"), 2_000_000, moment):
        assert list(u.find("a", type="f", older=when)) == ["a/one"]
        assert "a/b/two" in list(u.find("a", type="f", newer=when))
        assert "a/one" not in list(u.find("a", newer=when))


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"name": "**/*.py"}, "every depth"),
        ({"type": "x"}, "directory"),
        ({"max_depth": 0}, "max_depth"),
    ],
)
def test_find_says_what_is_wrong(wanted: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        u.find(".", **wanted)


def test_what_is_not_there_is_an_error_at_once() -> None:
    for use in (u.find, u.walk, u.tree, u.ls, u.head, u.wc, lambda path: u.grep("x", path)):
        with pytest.raises(FileNotFoundError):
            use("absent")


def test_walk_is_sorted_and_leaves_out_what_was_removed(project: None) -> None:
    seen = list(u.walk())
    assert seen[0] == (".", ["a", "link"], [".hidden", "four.py"])
    assert [place for place, _, _ in seen] == [".", "./a", "./a/b", "./a/b/c"]
    pruned = []
    for place, directories, _ in u.walk():
        pruned.append(place)
        if place == "./a":
            directories.remove("b")
    assert pruned == [".", "./a"]
    assert [place for place, _, _ in u.walk("a", max_depth=1)] == ["a"]


def test_tree_draws_what_there_is(project: None) -> None:
    assert u.tree().splitlines() == [
        "./",
        "├── a/",
        "│   ├── b/",
        "│   │   ├── c/",
        "│   │   │   └── three",
        "│   │   └── two",
        "│   ├── one",
        "│   └── up -> ..",
        "├── four.py",
        "└── link -> a",
    ]
    assert ".hidden" in u.tree(hidden=True) and "two" not in u.tree(max_depth=2)
    assert u.tree(max_entries=2).splitlines()[2:] == [
        "│   ├── b/",
        "… (there is more than max_entries=2)",
    ]


def test_tree_shows_odd_names_on_one_line() -> None:
    make(**{"a\nb\x1b[2J": "", "café": ""})
    assert u.tree().splitlines()[1:] == ["├── a\\nb\\x1b[2J", "└── café"]


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that cannot be read, also for root."""
    make(a__x="x", b__x="x", c__x="x")
    scandir = os.scandir

    def refusing(path: str) -> Any:
        if os.path.basename(path) == "b":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)


def test_what_cannot_be_read_is_reported_and_passed_over(unreadable: None, capsys: Any) -> None:
    assert list(u.find(type="f")) == ["a/x", "c/x"]
    assert capsys.readouterr().err == "find: b: Permission denied\n"
    errors: list[OSError] = []
    assert [path for path, _, _ in u.grep("x", ".", recursive=True, on_error=errors.append)] == [
        "a/x", "c/x",
    ]  # fmt: skip
    assert [place for place, _, _ in u.walk(on_error=errors.append)] == [".", "./a", "./b", "./c"]
    assert "c/" in u.tree(on_error=errors.append)
    assert [type(one) for one in errors] == [PermissionError] * 3


def test_nothing_is_copied_or_removed_in_part_without_a_word(unreadable: None) -> None:
    with pytest.raises(PermissionError):
        u.copy_tree("b", "copy")
    with pytest.raises(PermissionError):
        u.remove_tree("b")


def test_a_hundred_thousand_files_and_a_deep_tree_are_gone_through() -> None:
    os.mkdir("many")
    for number in range(100_000):
        os.close(os.open(f"many/{number}", os.O_CREAT))
    assert next(u.find()) == "many"
    assert sum(1 for _ in u.find("many")) == 100_000
    assert sum(len(files) for _, _, files in u.walk("many")) == 100_000
    assert u.tree("many").count("\n") == 1001
    for depth in range(1, 1501):
        os.mkdir("/".join(["d"] * depth))
    assert sum(1 for _ in u.find("d")) == 1499
    u.copy_tree("d", "e")
    u.remove_tree("many")
    u.rm("d", "e", recursive=True)
    assert os.listdir() == []


# ---- single files


def test_ls_lists_names_or_what_they_are(project: None) -> None:
    assert u.ls() == ["a", "four.py", "link"] and u.ls("four.py") == ["four.py"]
    assert u.ls(hidden=True)[0] == ".hidden"
    a, four, link = u.ls(long=True)
    assert (a["type"], four["type"], link["type"]) == ("directory", "file", "link")
    assert four["size"] == 0 and four["name"] == "four.py" and four["mtime"] > 0
    assert four["mode"] == stat.S_IMODE(os.stat("four.py").st_mode)


def test_files_are_made_and_removed() -> None:
    u.touch("a", "b")
    os.utime("a", (1, 1))
    u.touch("a")
    assert os.stat("a").st_mtime > 1 and u.cat("a") == ""
    u.mkdir("d")
    with pytest.raises(FileExistsError):
        u.mkdir("d")
    u.mkdir("d", "x/y/z", parents=True)
    with pytest.raises(IsADirectoryError, match="recursive=True"):
        u.rm("d")
    with pytest.raises(FileNotFoundError):
        u.rm("absent")
    u.rm("a", "b", "d", "x", "absent", recursive=True, missing_ok=True)
    assert os.listdir() == []


def test_cp_copies_as_a_shell_does() -> None:
    make(a="1", d__b="2")
    os.chmod("a", 0o700)
    assert u.cp("a", "c") == "c" and os.stat("c").st_mode & 0o777 == 0o700
    assert u.cp("a", "d") == "d/a" and Path("d/a").read_text() == "1"
    with pytest.raises(IsADirectoryError, match="recursive=True"):
        u.cp("d", "e")
    assert u.cp("d", "e", recursive=True) == "e" and u.ls("e") == ["a", "b"]
    assert u.cp("d/", "e", recursive=True) == "e/d" and u.ls("e/d") == ["a", "b"]
    with pytest.raises(FileExistsError):
        u.cp("d/b", "a", overwrite=False)
    u.cp("d/b", "a")
    assert Path("a").read_text() == "2"


def test_mv_moves_as_a_shell_does() -> None:
    make(a="1", b="2", d__x="")
    assert u.mv("a", "b") == "b" and Path("b").read_text() == "1"
    assert u.mv("b", "d") == "d/b"
    assert u.mv("d", "e") == "e" and u.ls("e") == ["b", "x"]
    make(e__e__y="", x="new")
    with pytest.raises(ValueError, match="is in 'e'"):
        u.mv("e", "e/e")
    with pytest.raises(FileExistsError):
        u.mv("x", "e", overwrite=False)
    make(d__e__z="")
    with pytest.raises(FileExistsError):
        u.mv("e", "d")
    assert u.ls("d/e") == ["z"]


def test_a_tree_is_copied_as_it_is(project: None) -> None:
    os.chmod("a/b", 0o500)
    assert u.copy_tree("a", "copy") == "copy"
    assert list(u.find("copy", type="f")) == ["copy/b/c/three", "copy/b/two", "copy/one"]
    assert os.readlink("copy/up") == ".." and os.stat("copy/b").st_mode & 0o777 == 0o500
    with pytest.raises(FileExistsError, match="overwrite=True"):
        u.copy_tree("a", "copy")
    make(copy__own="kept", a__one="new")
    u.copy_tree("a", "copy", overwrite=True)
    assert Path("copy/own").read_text() == "kept" and Path("copy/one").read_text() == "new"
    with pytest.raises(ValueError, match="is in"):
        u.copy_tree("a", "a/b/copy")
    with pytest.raises(ValueError, match="is in"):
        u.copy_tree(".", "copy2")


def test_the_working_directory_is_not_removed(here: Path) -> None:
    make(f="x")
    for path in (".", here, "../work", f"{here}/."):
        with pytest.raises((ValueError, PermissionError)):
            u.remove_tree(path)
    with pytest.raises(ValueError, match="working directory"):
        u.remove_tree("..", outside=True)
    for path in ("f", "absent"):
        with pytest.raises((NotADirectoryError, FileNotFoundError)):
            u.remove_tree(path)
    u.remove_tree("absent", missing_ok=True)
    assert os.listdir() == ["f"]


@pytest.fixture
def special() -> Iterator[list[str]]:
    os.mkfifo("fifo")
    made = socket.socket(socket.AF_UNIX)
    made.bind("socket")
    yield ["fifo", "socket"]
    made.close()


def test_what_is_no_file_blocks_nobody(special: list[str]) -> None:
    make(f="x")
    for name in special:
        for use in (u.cat, u.head, u.tail, u.wc, u.csv_to_json, u.xml_to_dict):
            with pytest.raises(OSError):
                use(name)
        for arguments in (("f", name), (name, "g")):
            with pytest.raises(OSError):
                u.cp(*arguments)
        with pytest.raises(OSError):
            u.echo("x", to=name)
    errors: list[OSError] = []
    assert list(u.grep("x", [".", *special], recursive=True, on_error=errors.append)) == [
        ("f", 1, "x")
    ]
    assert len(errors) == 2  # those that were named
    with pytest.raises(OSError):
        u.copy_tree(".", "../copy", outside=True)


def test_echo_writes_what_it_returns() -> None:
    assert u.echo("a", 1, to="f") == "a 1\n"
    assert u.echo("é", end="", to="f", append=True) == "é"
    assert Path("f").read_bytes() == b"a 1\n\xc3\xa9"
    with pytest.raises(ValueError, match="to="):
        u.echo("x", append=True)


def test_every_function_has_its_documentation() -> None:
    for name in u.__all__:
        assert getattr(u, name).__doc__, name
        assert getattr(u, name).__module__.startswith("sandbox_utils")
