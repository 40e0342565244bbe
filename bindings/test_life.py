# SPDX-License-Identifier: Apache-2.0
"""The commands that mend, describe and remove an installation, before they do anything."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch import _apparmor, _status, cli
from hutch.cli import (
    completion,
    inventory,
    mending,
    prune,
    trees,
    uninstall,
    uninstall_store,
    version,
)
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


def test_what_an_agent_advises_is_not_run() -> None:
    for name in _status.PROOFS:
        told = {**check("sudo chmod u+s /bin/sh"), "name": name}
        assert mending.commands_of([told, check("sudo a")], True) == ["a"]


def test_a_command_that_two_checks_name_is_run_once() -> None:
    assert mending.commands_of([check("sudo a"), check("sudo a")], True) == ["a"]


def test_nothing_is_mended_where_nobody_can_be_asked(tmp_path: Path) -> None:
    made = tmp_path / "made"
    with pytest.raises(ValueError, match=r"add --yes$"):
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


def test_what_apparmor_refuses_us_is_tried_as_podman(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = {**check(""), "name": "user namespaces", "detail": "cannot mount"}
    paths = {"service_user": False, "home": "/", "run_dir": "/run/x/hutch"}
    monkeypatch.setattr(_apparmor, "restricts", lambda: False)
    assert _apparmor.judged(refused, paths) == refused
    monkeypatch.setattr(_apparmor, "restricts", lambda: True)
    for program, ok in (("/bin/true", True), ("/bin/false", False)):
        monkeypatch.setattr(_apparmor.shutil, "which", lambda name, found=program: found)
        assert _apparmor.judged(refused, paths)["ok"] is ok
    monkeypatch.setattr(_apparmor.shutil, "which", lambda name: "/bin/true")
    monkeypatch.setattr(_apparmor, "PROFILE_FILE", str(tmp_path / "hutch"))
    monkeypatch.setattr(
        _apparmor, "_label_of_pause", lambda runtime: f"{_apparmor._UNKNOWN} (enforce)\n"
    )
    assert not _apparmor.judged(refused, paths)["ok"]
    Path(_apparmor.PROFILE_FILE).write_text(_apparmor.profile())
    assert _apparmor.judged(refused, paths)["ok"]  # as it is found again after the fix
    assert _apparmor.judged(refused, None)["fix"].startswith("hutch doctor --fix")
    [command] = mending.commands_of([_apparmor.judged(refused, None)], True)
    assert command.startswith("printf %s ") and "apparmor_parser --replace" in command
    assert "sudo" not in command


def test_whatever_stands_for_the_pause_process_is_not_waited_for(tmp_path: Path) -> None:
    place = tmp_path / "libpod" / "tmp" / "pause.pid"
    place.parent.mkdir(parents=True)
    assert _apparmor._label_of_pause(str(tmp_path)) == ""
    os.mkfifo(place)
    assert _apparmor._label_of_pause(str(tmp_path)) == ""
    place.unlink()
    (tmp_path / "other").write_text("17")
    place.symlink_to(tmp_path / "other")
    with pytest.raises(OSError):
        _apparmor.pause_process(str(tmp_path))
    place.unlink()
    place.write_text("17")
    assert _apparmor.pause_process(str(tmp_path)) == 17


def test_the_service_user_is_the_launchers() -> None:
    header = (Path(__file__).parents[1] / "wire" / "paths.h").read_text()
    said = dict(re.findall(r'char (kService\w+)\[\] = "([^"]+)"', header))
    assert said == {
        "kServiceUser": "hutch",
        "kServiceHome": uninstall._SERVICE_HOME,
        "kServiceRuntimeDir": "/run/hutch",
    }


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
    file.write_text("# Somebody's own.\n")  # while it was asked
    with pytest.raises(OSError, match="any more"):
        thing.remove()
    file.write_text(_apparmor.profile())
    thing.remove()
    assert not file.exists()
    file.write_text(_apparmor.profile())
    monkeypatch.setattr(_apparmor, "removal", lambda is_root: "false")
    with pytest.raises(OSError, match="run: false"):
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


PRESS_TAB = r"""
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_shtab_hutch hutch
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("pru", "prune"),
        ("agent resta", "restart"),
        ("run --time", "--timeout"),
        ("run rep", "report.py"),
        ("run report.py -v rep", "report.py"),
        ("run --file rep", "report.py"),
        ("eval humaneval report.py --out rep", "report.py"),
        ("serve --socket rep", "report.py"),
    ],
)
def test_bash_completes_commands_options_and_files(
    words: str, completed: str, tmp_path: Path
) -> None:
    (tmp_path / "report.py").touch()
    test = f"{completion.script_for('bash')}\nCOMP_WORDS=(hutch {words})\n{PRESS_TAB}"
    done = subprocess.run(
        ["bash", "--norc", "-c", test], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.split() == [completed], done.stderr


def test_version_starts_nothing_and_says_what_there_is() -> None:
    found = version.facts()
    assert found["hutch"] == hutch.__version__
    assert found["package"] == hutch.__path__[0]
    assert set(found) == {"hutch", "package", "python", "podman", "system", "agent", "state"}


def test_version_says_how_a_missing_podman_comes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {**version.facts(), "podman": None}
    monkeypatch.setattr(version, "facts", lambda: found)
    assert cli.main(["version"]) == 0
    assert "podman  none: `hutch doctor` says" in capsys.readouterr().out


def test_where_no_agent_runs_its_log_is_empty_in_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inventory, "paths", lambda: None)
    assert cli.main(["logs", "--json"]) == cli.FAILED
    said = capsys.readouterr()
    assert json.loads(said.out) == {"lines": []} and "no agent runs" in said.err
    assert cli.main(["logs", "--json", "--follow"]) == cli.MISUSED
    assert "has no end" in json.loads(capsys.readouterr().out)["message"]


def test_the_sessions_that_are_deleted_are_named_in_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hutch.sessions, "delete", lambda id, storage: None)
    assert cli.main(["sessions", "delete", "a", "b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"deleted": ["a", "b"]}


def test_sizes_count_each_file_once_and_follow_no_link(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    alone = trees.bytes_of(tmp_path)
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").symlink_to("/usr")
    assert alone <= trees.bytes_of(tmp_path) < alone + 50_000
    assert trees.bytes_of(tmp_path / "missing") == 0


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
    trees.remove_tree(tree)
    assert not tree.exists() and (kept / "file").exists()
    trees.remove_tree(tmp_path / "missing")


@pytest.fixture
def linked() -> Iterator[tuple[Path, Path]]:
    """A state directory that a hostile user has replaced by a link, and where it leads: root's."""
    if os.geteuid() != 0:
        pytest.skip("only root removes for others")
    with tempfile.TemporaryDirectory() as name:  # others may enter it, unlike pytest's
        top = Path(name)
        top.chmod(0o755)
        (top / "roots" / "audit").mkdir(parents=True)
        (top / "user").mkdir()
        os.chown(top / "user", 65534, 65534)
        (top / "user" / "state").symlink_to(top / "roots")
        yield top / "user" / "state", top / "roots"


@pytest.mark.parametrize("owner", [(65534, 65534), None])
def test_root_removes_nothing_of_a_users_as_root(
    linked: tuple[Path, Path], owner: tuple[int, int] | None
) -> None:
    state, roots = linked
    with pytest.raises(OSError, match="cannot be removed"):
        trees.remove_tree(state / "audit", owner)
    trees.remove_if_empty(state / "audit", owner)
    with pytest.raises(OSError):
        trees.move(state / "audit", "other", owner)
    assert [place.name for place in roots.iterdir()] == ["audit"]
    assert trees.move(roots / "audit", "other", None) == roots / "other"
    trees.remove_if_empty(roots / "other")
    assert list(roots.iterdir()) == []


def test_a_link_of_roots_leads_to_the_user_whose_directory_it_names(
    linked: tuple[Path, Path],
) -> None:
    state, roots = linked
    (roots / "to").symlink_to(state.parent)
    os.lchown(state, 0, 0)
    with pytest.raises(OSError, match="cannot be removed"):
        trees.remove_tree(roots / "to" / "state" / "audit")
    assert (roots / "audit").exists()


MOUNT = 'mount --make-rprivate / && mount --bind kept tree/below && exec "$@"'
REMOVE = "from hutch.cli import trees; trees.remove_tree('tree')"


def test_what_is_mounted_in_a_tree_stays(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a disk")
    for place in ("kept/file", "tree/below", "tree/beside"):
        (tmp_path / place).mkdir(parents=True)
    mounted = ["unshare", "--mount", "sh", "-ec", MOUNT, "sh"]
    remove = [sys.executable, "-c", REMOVE.replace("'tree'", repr(str(tmp_path / "tree")))]
    done = subprocess.run([*mounted, *remove], cwd=tmp_path, capture_output=True, text=True)
    assert f"{tmp_path}/tree/below is mounted there" in done.stderr
    assert (tmp_path / "kept" / "file").exists() and (tmp_path / "tree" / "beside").exists()
    subprocess.run(remove, cwd=tmp_path, check=True)
    assert not (tmp_path / "tree").exists()


def test_root_changes_no_modes_as_root(linked: tuple[Path, Path]) -> None:
    def refuse(command: list[str], who: object) -> subprocess.CompletedProcess[str]:
        commands.append(command[0])
        return subprocess.CompletedProcess(command, 1, "", "busy")

    commands: list[str] = []
    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="busy"):
        patch.setattr(trees, "_run", refuse)
        trees.remove_tree(linked[1])
    assert commands == ["rm"]


def test_who_removes_for_us_knows_neither_our_environment_nor_our_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    assert "s3cret" not in trees._run(["env"], {}).stdout
    session = trees._run(["cut", "-d ", "-f6", "/proc/self/stat"], {}).stdout
    assert int(session) != os.getsid(0)


def said(text: str, code: int = 0) -> Callable[..., subprocess.CompletedProcess[str]]:
    return lambda *arguments: subprocess.CompletedProcess(arguments, code, text, "no answer")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{",
        "3",
        '[{"Id": "--all"}]',
        '[{"Id": ["x"]}]',
        '[{"Id": "%s", "Size": 1e999, "Created": 0}]' % ("a" * 64),
        '[{"Id": "%s", "Labels": 3, "Size": 1, "Created": 0}]' % ("a" * 64),
        '[{"Size": 1}]',
    ],
)
def test_a_hostile_answer_of_podmans_is_one_error(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "podman", said(text))
    with pytest.raises(OSError, match="podman images"):
        inventory.images()


def test_where_podman_does_not_say_what_is_in_use_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "podman", said("", code=125))
    with pytest.raises(OSError, match="podman ps: no answer"):
        inventory.in_use(tmp_path)
    assert [*uninstall_store.empty_store(tmp_path, set())] == []


def test_what_a_container_has_or_a_program_runs_from_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("run", "mounted", "free"):
        (tmp_path / name).mkdir()
    link = tmp_path.with_name(f"{tmp_path.name}-link")
    link.symlink_to(tmp_path)
    program = tmp_path / "run" / "program"
    shutil.copy(shutil.which("sleep") or "", program)
    monkeypatch.setattr(inventory, "podman", said(f"{tmp_path}/mounted\n/elsewhere\n"))
    with subprocess.Popen([program, "600"]) as process:
        try:
            assert inventory.in_use(tmp_path) == inventory.in_use(link) == {"run", "mounted"}
        finally:
            process.kill()


def test_a_runtime_that_is_used_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "runtime"
    for name in ("one", "two", "three"):
        (directory / name).mkdir(parents=True)
        os.utime(directory / name, (0, 0))
    (tmp_path / "start.lock").touch()
    here = Instance(str(tmp_path), str(tmp_path), (os.getuid(), os.getgid()))
    monkeypatch.setattr(inventory, "current", lambda: here)
    monkeypatch.setattr(inventory, "in_use", lambda directory: set())
    found = [*prune._runtimes(1000.0)]
    assert [one.name for one in found] == ["one", "three", "two"]
    os.utime(directory / "two")  # as the start of an agent does
    (directory / "three").rmdir()  # another prune was quicker
    assert [one.remove() for one in found] == [True, False, False]
    assert [place.name for place in directory.iterdir()] == ["two"]
    os.utime(directory / "two", (0, 0))
    directory.rename(tmp_path / "moved")
    directory.symlink_to(tmp_path / "moved")
    assert [*prune._runtimes(1000.0)] == []


def test_an_agent_that_says_less_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = [{}, {"digest": "a" * 64}, {"digest": "b" * 64, "last_used": 1}]
    monkeypatch.setattr("hutch._status.environments", lambda: told)
    monkeypatch.setattr(hutch, "status", lambda: {"running": True, "pools": [{}]})
    assert [one.digest for one in prune._environments(1000.0)] == ["b" * 64]


def test_what_cannot_be_pruned_is_said_and_the_rest_goes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise OSError("it is busy")

    a = prune.Unused("runtime", "a", 1, 0.0, fail)
    b = replace(a, name="b", remove=lambda: None)
    monkeypatch.setattr(prune, "_environments", lambda before: [])
    monkeypatch.setattr(prune, "_runtimes", lambda before: [a, b])
    monkeypatch.setattr(prune, "_images", lambda before, pruned: [])
    assert cli.main(["prune"]) == cli.FAILED
    said = capsys.readouterr()
    assert said.err == "hutch: left: it is busy\n" and "  b  " in said.out
    assert "  a  " not in said.out


def test_a_store_that_others_use_stays(tmp_path: Path) -> None:
    ours = {"a" * 64}
    usual = {
        "ps": ["0123456789ab 1"],
        "images": ["sha256:" + "a" * 64],
        "network": ["podman"],
    }
    others = {
        "ps": ["0123456789ab "],
        "images": ["sha256:" + "b" * 64],
        "network": ["podman", "mine"],
        "volume": ["mine"],
        "secret": ["mine"],
        "pod": ["mine"],
    }

    def has_others(answers: dict[str, list[str]]) -> bool:
        return uninstall_store._has_others(tmp_path, ours, lambda *words: answers.get(words[0], []))

    assert not has_others(usual)
    for what, answer in others.items():
        assert has_others({**usual, what: answer}), what
    (tmp_path / "artifacts" / "blobs" / "sha256" / "1").mkdir(parents=True)
    assert has_others(usual)


PODMAN = """#!/bin/sh
case $1 in
images) cat "$ANSWER";;
unshare) shift; "$@";;
esac
"""


def test_what_was_put_into_the_store_meanwhile_and_credentials_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, run_dir, answer = tmp_path / "c" / "storage", tmp_path / "run", tmp_path / "answer"
    for place in (store / "overlay", run_dir / "containers" / "overlay", tmp_path / "bin"):
        place.mkdir(parents=True)
    (run_dir / "containers" / "auth.json").touch()
    (tmp_path / "bin" / "podman").write_text(PODMAN)
    (tmp_path / "bin" / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("ANSWER", str(answer))
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)  # of whom nothing is in /dev/shm
    answer.write_text("sha256:" + "b" * 64 + "\n")
    with pytest.raises(OSError, match="meanwhile"):
        uninstall_store._remove(store, run_dir, set())
    assert (store / "overlay").exists()
    answer.write_text("")
    uninstall_store._remove(store, run_dir, set())
    assert not store.parent.exists()
    assert [str(one.relative_to(run_dir)) for one in run_dir.rglob("*")] == [
        "containers",
        "containers/auth.json",
    ]


def test_another_user_of_that_name_or_uid_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done: list[str] = []
    user = pwd.getpwuid(0)
    monkeypatch.setattr(uninstall, "_SERVICE_HOME", str(tmp_path))
    monkeypatch.setattr(uninstall, "_user", lambda name: user)
    monkeypatch.setattr(uninstall, "_end_processes", lambda uid: done.append("ended"))
    monkeypatch.setattr(trees, "remove_tree", lambda *place: done.append("removed"))
    userdel = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(uninstall.subprocess, "run", lambda *words, **how: userdel)
    monkeypatch.setattr(trees, "bytes_of", lambda *places: 0)
    [thing] = uninstall._service_user(str(tmp_path), [])
    other = pwd.struct_passwd(("hutch", "x", 1, 1, "", "/", ""))
    monkeypatch.setattr(uninstall, "_user", lambda name: other)
    with pytest.raises(OSError, match="look again"):
        thing.remove()
    assert done == []
    monkeypatch.setattr(uninstall, "_user", lambda name: None)
    thing.remove()
    assert set(done) == {"removed"}
    monkeypatch.setattr(uninstall, "_user", lambda name: user)
    thing.remove()
    assert "ended" in done


def test_a_home_of_very_many_files_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for number in range(12_000):  # more than the words of a command may be
        (tmp_path / f"{number:0200}").touch()
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "file").write_bytes(b"x" * 1_000_000)
    (tmp_path / ".hidden").write_bytes(b"x" * 2_000_000)
    monkeypatch.setattr(uninstall, "_SERVICE_HOME", str(tmp_path))
    monkeypatch.setattr(uninstall, "_user", lambda name: pwd.getpwuid(0))
    [thing] = uninstall._service_user(str(tmp_path), [str(tmp_path / "state")])
    assert thing.bytes is not None and thing.bytes >= 2_000_000


def test_an_agent_that_never_ends_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(uninstall, "_STOP", "import time; time.sleep(600)")
    monkeypatch.setattr(uninstall, "_STOP_SEC", 0.1)
    with pytest.raises(OSError, match="does not stop"):
        uninstall._stop(Instance(str(tmp_path), str(tmp_path), (0, 0)))


def test_the_link_to_an_instance_stays_while_something_is_left_of_it(tmp_path: Path) -> None:
    state, run_dir = tmp_path / "state", tmp_path / "run"
    for place in (state / "store", state / "sessions", run_dir):
        place.mkdir(parents=True)
    one = Instance(str(state), str(run_dir), (os.getuid(), os.getgid()))
    with pytest.raises(OSError, match="what is left"):
        uninstall._remove_run_dir(one)
    (state / "store").rmdir()
    assert run_dir.exists()
    uninstall._remove_run_dir(one)
    assert not run_dir.exists()


def test_what_an_agent_says_of_itself_is_shown_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {"hutch": "1", "agent": "\x1b]0;owned\x07", "podman": None}
    monkeypatch.setattr(version, "facts", lambda: told)
    assert cli.main(["version"]) == 0
    assert "\x1b" not in capsys.readouterr().out


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


def raising(error: type[BaseException]) -> Callable[[str], str]:
    def ask(question: str) -> str:
        raise error

    return ask


def test_where_there_is_nothing_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(uninstall, "_things", lambda keep: [])
    assert cli.main(["uninstall"]) == 0
    assert capsys.readouterr().out.count("goes by") == 1


def test_nothing_is_removed_unasked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []
    monkeypatch.setattr(uninstall, "_things", lambda keep: things(False, done))
    assert cli.main(["uninstall"]) == cli.MISUSED
    assert "--yes" in capsys.readouterr().err
    assert cli.main(["uninstall", "--dry-run"]) == 0 and done == []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert cli.main(["uninstall"]) == cli.MISUSED  # what it is about was not shown on a terminal
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    capsys.readouterr()
    assert cli.main(["uninstall", "--json"]) == cli.MISUSED
    assert "--dry-run" in json.loads(capsys.readouterr().out)["message"]
    for no in (lambda question: "n", raising(EOFError), raising(KeyboardInterrupt)):
        monkeypatch.setattr("builtins.input", no)
        code = cli.main(["uninstall"])
        assert code in (cli.FAILED, cli.INTERRUPTED) and done == []
    monkeypatch.setattr("builtins.input", lambda question: "y")
    assert cli.main(["uninstall"]) == 0 and done == ["one", "two"]


ASK = r"""
import sys
import hutch
from hutch import cli
from hutch.cli import inventory, uninstall
def fail(): raise OSError("\x1b[1m")
hutch.status = lambda: {"running": True}
forged = "agent of /x\x1b[2J\u202e\nremoved: all"
uninstall._things = lambda keep: [
    inventory.Thing(forged, forged, 5, lambda: None), inventory.Thing(forged, "/b", 5, fail)
]
sys.exit(cli.main(["uninstall"]))
"""


def at_a_terminal(keys: bytes) -> tuple[int, bytes]:
    """How `hutch uninstall` ends, and what is shown; `keys`: what is pressed at its question."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", ASK])
    shown = b""
    while b"[y/N] " not in shown:
        shown += os.read(terminal, 4096)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "SZ":
        time.sleep(0.001)  # a Ctrl-C before it reads is Python's to notice at its next line
    if keys:
        os.write(terminal, keys)
        with contextlib.suppress(OSError):  # as Linux says that nobody has the terminal any more
            while more := os.read(terminal, 4096):
                shown += more
    os.close(terminal)  # no keys: it goes away
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown


@pytest.mark.parametrize(
    ("keys", "is_removed"),
    [
        *((b"y\n", True), (b"Y\n", True), (b" yes \n", True), (b"n\x7fy\n", True)),
        *((b"n\n", False), (b"\n", False), (b"y y\n", False), (b"\xef\xbd\x99\n", False)),
        *((b"\xff\n", False), (b"y\x03", False), (b"\x04", False), (b"", False)),
    ],
)
def test_only_a_yes_at_a_terminal_removes_and_no_name_forges_what_is_shown(
    keys: bytes, is_removed: bool
) -> None:
    code, shown = at_a_terminal(keys)
    assert (b"\nremoved: agent" in shown) is is_removed
    assert code != 0 and b"\x1b" not in shown and b"\nremoved: all" not in shown
    assert b"Traceback" not in shown


def test_without_a_standard_input_nobody_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []
    monkeypatch.setattr(uninstall, "_things", lambda keep: things(False, done))
    monkeypatch.setattr("sys.stdin", None)
    assert cli.main(["uninstall"]) == cli.MISUSED
    assert "nobody can be asked" in capsys.readouterr().err and done == []


def test_an_error_of_podmans_is_shown_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(keep: bool) -> list[Thing]:
        raise OSError("podman ps: \x1b]0;owned\x07\nsecond\tline")

    monkeypatch.setattr(uninstall, "_things", fail)
    assert cli.main(["uninstall", "--yes"]) == cli.MISUSED
    said = capsys.readouterr().err
    assert said.startswith("hutch: podman ps: \\x1b]0;owned\\x07\nsecond ")


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
