# SPDX-License-Identifier: Apache-2.0
"""The commands that mend, describe and remove an installation, before they do anything."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch import _apparmor, cli
from hutch.cli import completion, inventory, mending, prune, uninstall, version
from hutch.cli.inventory import Instance, Thing
from hutch.cli.parser import COMMANDS


def check(fix: str, ok: bool = False) -> dict[str, Any]:
    return {"name": "x", "ok": ok, "required": True, "detail": "", "fix": fix}


SUDO = "sudo sh -c 'chmod 666 /dev/null'"
FIXES = [
    ("sudo apt-get install podman", "sudo apt-get install podman", "apt-get install podman"),
    ("sudo a && sudo b   (and log in again)", "sudo a && sudo b", "a && b"),
    ("printf x | sudo tee y   (as root)", None, None),
    ("chmod 666 /dev/null   (as root)", SUDO, "chmod 666 /dev/null"),
    ("add x to the kernel's command line and reboot", None, None),
    ("set HUTCH_HOME to another directory", None, None),
    ("", None, None),
]


@pytest.mark.parametrize(("fix", "of_user", "of_root"), FIXES)
def test_a_fix_that_is_a_command_can_be_run(
    fix: str, of_user: str | None, of_root: str | None
) -> None:
    assert mending.commands_of([check(fix)], False) == ([of_user] if of_user else [])
    assert mending.commands_of([check(fix)], True) == ([of_root] if of_root else [])
    assert mending.commands_of([check(fix, ok=True)], False) == []


def test_a_command_that_two_checks_name_is_run_once() -> None:
    assert mending.commands_of([check("sudo a"), check("sudo a")], True) == ["a"]


def test_nothing_is_mended_where_nobody_can_be_asked(tmp_path: Path) -> None:
    made = tmp_path / "made"
    with pytest.raises(ValueError, match="--yes"):
        mending.mend([check(f"chmod 600 {made}")], is_yes=False)


def test_what_is_mended_is_shown_first(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    file = tmp_path / "file"
    file.touch(0o600)
    assert mending.mend([check(f"chmod 640 {file}   (as root)")], is_yes=True)
    assert file.stat().st_mode & 0o777 == 0o640
    assert f"chmod 640 {file}" in capfd.readouterr().out
    assert not mending.mend([check("log in again")], is_yes=True)


def test_the_profile_is_of_our_programs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_apparmor.shutil, "which", lambda name: f"/opt/x/{name}")
    text = _apparmor.profile()
    assert re.findall(r"^profile (\S+) (\S+) flags", text, re.M) == [
        ("hutch", os.path.realpath(os.path.join(hutch.__path__[0], "_runtime", "hutch-agent"))),
        ("hutch-podman", "/opt/x/podman"),
    ]
    assert text.count("userns,") == 2 and "capability" not in text
    monkeypatch.setattr(_apparmor.shutil, "which", lambda name: "/opt/a b/podman")
    with pytest.raises(ValueError, match="unusual"):
        _apparmor.profile()


def test_what_apparmor_refuses_us_is_tried_as_podman(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {**check(""), "name": "user namespaces", "detail": "cannot mount"}
    paths = {"service_user": False, "home": "/", "run_dir": "/run/x/hutch"}
    monkeypatch.setattr(_apparmor, "restricts", lambda: False)
    assert _apparmor.judged(refused, paths) == refused
    monkeypatch.setattr(_apparmor, "restricts", lambda: True)
    for program, ok in (("/bin/true", True), ("/bin/false", False)):
        monkeypatch.setattr(_apparmor.shutil, "which", lambda name, found=program: found)
        assert _apparmor.judged(refused, paths)["ok"] is ok
    assert _apparmor.judged(refused, None)["fix"].startswith("hutch doctor --fix")
    [command] = mending.commands_of([_apparmor.judged(refused, None)], True)
    assert command.startswith("printf %s ") and "apparmor_parser --replace" in command
    assert "sudo" not in command


def test_a_profile_of_ours_is_removed_with_all_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "hutch"
    monkeypatch.setattr(_apparmor, "PROFILE_FILE", str(file))
    assert not _apparmor.is_installed()
    file.write_text("# Somebody's own.\n")
    assert list(uninstall._profile()) == []
    file.write_text(_apparmor.profile())
    monkeypatch.setattr(_apparmor, "removal", lambda is_root: f"rm {file}")
    [thing] = uninstall._profile()
    thing.remove()
    assert not file.exists()
    with pytest.raises(OSError, match="run: rm "):
        thing.remove()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_word_is_completed(shell: str) -> None:
    script = completion.script_for(shell)
    assert [name for name in COMMANDS if name not in script] == []
    assert "older" in script and "timeout" in script


def test_bash_takes_its_script() -> None:
    test = completion.script_for("bash") + "\ncomplete -p hutch"
    done = subprocess.run(["bash", "-c", test], capture_output=True, text=True)
    assert done.returncode == 0 and "hutch" in done.stdout, done.stderr


def test_version_starts_nothing_and_says_what_there_is() -> None:
    found = version.facts()
    assert found["hutch"] == hutch.__version__
    assert found["package"] == hutch.__path__[0]
    assert set(found) == {"hutch", "package", "python", "podman", "system", "agent", "state"}


def test_sizes_count_each_file_once_and_follow_no_link(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    alone = inventory.bytes_of(tmp_path)
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").symlink_to("/usr")
    assert alone <= inventory.bytes_of(tmp_path) < alone + 50_000
    assert inventory.bytes_of(tmp_path / "missing") == 0


def test_a_tree_goes_whatever_its_modes_and_no_link_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    tree = tmp_path / "tree"
    (tree / "below").mkdir(parents=True)
    (tree / "below" / "file").touch()
    (tree / "link").symlink_to(kept)
    monkeypatch.chdir(tree)
    for _ in range(300):  # longer than a path may be
        os.mkdir("d" * 20)
        os.chdir("d" * 20)
    monkeypatch.undo()
    (tree / "below").chmod(0)
    tree.chmod(0o555)
    inventory.remove_tree(tree)
    assert not tree.exists() and (kept / "file").exists()
    inventory.remove_tree(tmp_path / "missing")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root removes for others")
def test_root_removes_nothing_of_a_users_as_root() -> None:
    with tempfile.TemporaryDirectory() as name:  # others may enter it, unlike pytest's
        top = Path(name)
        top.chmod(0o755)
        roots = top / "roots"
        (roots / "audit").mkdir(parents=True)
        state = top / "state"
        state.symlink_to(roots)  # a hostile user has put it in the place of the directory
        with pytest.raises(OSError, match="cannot be removed"):
            inventory.remove_tree(state / "audit", (65534, 65534))
        assert (roots / "audit").exists()
        inventory.remove_tree(state / "audit")
        assert not (roots / "audit").exists()


def test_another_instance_is_found_by_its_link_alone_if_it_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, uid = tmp_path / "run", os.geteuid()
    paths = {"state_dir": "/s", "run_dir": str(run_dir), "uid": uid, "gid": 0}
    monkeypatch.setattr("hutch._core.paths", lambda: paths)
    (tmp_path / "state").mkdir()
    for name, target in {
        "run-0123abcd": tmp_path / "state",
        "run-11111111": tmp_path / "missing",
        "run-22222222": Path("state"),
        "run-other": tmp_path / "state",
        "walk-0123abcd": tmp_path / "state",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "state").symlink_to(target)
    own = Instance("/s", str(run_dir), (uid, 0))
    theirs = Instance(str(tmp_path / "state"), str(tmp_path / "run-0123abcd"), (uid, 0))
    assert inventory.instances() == [own, theirs]
    paths["uid"] = uid + 1
    assert inventory.instances() == [replace(own, owner=(uid + 1, 0))]


def test_what_others_have_put_into_the_state_directory_stays(tmp_path: Path) -> None:
    for name in (*inventory.IN_STATE, "notes"):
        (tmp_path / name).mkdir()
    one = Instance(str(tmp_path), "", (os.getuid(), os.getgid()))
    for thing in uninstall._of_state(one, keep_sessions=True):
        thing.remove()
    assert {place.name for place in tmp_path.iterdir()} == {"notes", *inventory.KEPT}
    for thing in uninstall._of_state(one, keep_sessions=False):
        thing.remove()
    assert [place.name for place in tmp_path.iterdir()] == ["notes"]
    (tmp_path / "notes").rmdir()
    for thing in uninstall._of_state(one, keep_sessions=False):
        thing.remove()
    assert not tmp_path.exists()


def things(failing: bool, done: list[str]) -> list[Thing]:
    def fail() -> None:
        raise OSError("it is busy")

    return [
        Thing("one", "/a", 5_000_000, fail if failing else lambda: done.append("one")),
        Thing("two", "/b", None, lambda: done.append("two")),
    ]


@pytest.mark.parametrize("failing", [False, True])
def test_what_cannot_be_removed_is_said_and_the_rest_goes(
    failing: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []
    monkeypatch.setattr(uninstall, "_things", lambda keep: things(failing, done))
    assert cli.main(["uninstall", "--yes"]) == (1 if failing else 0)
    said = capsys.readouterr()
    assert done == (["two"] if failing else ["one", "two"])
    assert "5.0 MB" in said.out
    assert ("left: one: it is busy" in said.err) is failing
    assert ("pip uninstall" in said.out) is not failing


def test_nothing_is_removed_unasked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []
    monkeypatch.setattr(uninstall, "_things", lambda keep: things(False, done))
    assert cli.main(["uninstall"]) == cli.MISUSED
    assert "--yes" in capsys.readouterr().err
    assert cli.main(["uninstall", "--dry-run"]) == 0 and done == []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert cli.main(["uninstall"]) == cli.FAILED and done == []
    monkeypatch.setattr("builtins.input", lambda question: "y")
    assert cli.main(["uninstall"]) == 0 and done == ["one", "two"]


def test_the_cache_is_not_removed_beside_an_agent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hutch, "status", lambda: {"running": True})
    monkeypatch.setattr(prune, "_cache", lambda: pytest.fail("it was looked at"))
    assert cli.main(["prune", "--cache"]) == cli.MISUSED
    assert "hutch agent stop" in capsys.readouterr().err


LOOKING = [
    "logs", "logs --audit", "doctor --quick", "status", "ps", "sessions", "metrics", "env",
    "version", "agent", "prune --dry-run", "uninstall --dry-run", "top --once", "stop",
]  # fmt: skip


@pytest.mark.parametrize("command", LOOKING)
def test_a_home_that_is_none_is_one_sentence(
    command: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    hutch.close()
    monkeypatch.setenv("HUTCH_HOME", "no/absolute/path")
    code = cli.main(command.split())
    said = capfd.readouterr()
    assert code == (cli.FAILED if "doctor" in command else cli.BROKEN)
    assert "HUTCH_HOME must be an absolute path" in said.out + said.err
    assert "Traceback" not in said.out + said.err
