# SPDX-License-Identifier: Apache-2.0
"""Mounts: which ones are refused, by name and with a reason, and what a look finds."""

from __future__ import annotations

import io
import os
import pickle
import socket
import tarfile
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch import Mount, Policy, _core
from hutch._carry import scan
from hutch._options import mounts as _mounts
from hutch._options.keywords import with_keywords
from hutch._options.options import NORMAL


def mounts(value: Any) -> Any:
    return NORMAL.changed({"mounts": value}).mounts


def test_a_path_is_a_mount_that_is_only_read(tmp_path: Path) -> None:
    ((destination, mount),) = mounts({"/data/": tmp_path})
    assert (destination, mount) == ("/data", Mount(str(tmp_path)))
    assert (mount.writable, mount.as_caller) == (False, False)
    assert Mount(tmp_path, writable=True).as_caller
    assert mounts({}) == mounts(None) == ()


def test_a_source_is_settled_when_it_is_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "link").symlink_to("set")
    monkeypatch.chdir(tmp_path)
    assert Mount("link").source == Mount("./set/../link").source == str(tmp_path / "set")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Mount("~/set").source == str(tmp_path / "set")


def test_a_mount_is_frozen_and_a_value(tmp_path: Path) -> None:
    mount = Mount(tmp_path, as_caller=True)
    assert pickle.loads(pickle.dumps(mount)) == mount
    assert hash(Mount(tmp_path)) != hash(mount)
    with pytest.raises(AttributeError, match="frozen"):
        mount.writable = True


@pytest.mark.parametrize(
    "destination",
    "/ data ../data /proc /proc/1 /sys /dev/x /usr /usr/lib/x /bin /lib /lib64 /etc /etc/ssl /opt "
    "/opt/hutch /opt/python/x /run /tmp /tmp/x /work /var /data/../etc /data//x /data/./x /a:b "
    "/a,b".split(),
)
def test_a_destination_that_the_sandbox_needs_is_refused(destination: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mounts has the destination"):
        mounts({destination: tmp_path})


def test_mounts_in_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="/data/inner lies in /data"):
        mounts({"/data": tmp_path, "/data/inner": tmp_path})
    assert len(mounts({"/data": tmp_path, "/data2": tmp_path, "/opt/set": tmp_path})) == 3


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("/", "the whole host"),
        ("/does/not/exist", "no such path"),
        ("/proc/self", "processes"),
        ("/sys/kernel", "devices"),
        ("/dev/null", "devices"),
        ("/run", "sockets"),
        ("/run/user", "sockets"),
        ("/var", "storage|sockets"),
        ("/var/lib/containers/storage", "storage"),
        ("", "not a path"),
    ],
)
def test_what_is_the_hosts_own_is_refused_with_the_reason(source: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"cannot mount .*({reason})"):
        Mount(source)


def test_hutchs_own_directories_are_refused() -> None:
    paths = _core.paths()
    for place in (paths["state_dir"], paths["run_dir"], paths["agent_socket"]):
        with pytest.raises(ValueError, match="cannot mount"):
            Mount(str(place))


def test_credentials_are_refused_by_name_and_so_is_a_home_that_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    for name in (".ssh/keys", ".aws", ".gnupg", ".config/gcloud", ".kube", ".docker", "work/data"):
        (home / name).mkdir(parents=True)
    (home / ".netrc").write_text("machine a password b")
    monkeypatch.setenv("HOME", str(home))
    for name in (".ssh", ".ssh/keys", ".aws", ".gnupg", ".config/gcloud", ".kube", ".docker"):
        with pytest.raises(ValueError, match="credentials"):
            Mount(home / name)
    for name in (".netrc", ".", "..", ".config"):
        with pytest.raises(ValueError, match="credentials"):
            Mount(home / name)
    (tmp_path / "innocent").symlink_to(home / ".ssh")
    with pytest.raises(ValueError, match=r"innocent .*\.ssh.*credentials"):
        Mount(tmp_path / "innocent")
    assert Mount(home / "work" / "data").source == str(home / "work" / "data")


def test_a_socket_a_fifo_and_a_device_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        with pytest.raises(ValueError, match="it is a socket"):
            Mount(tmp_path / "s")
    with pytest.raises(ValueError, match="it is a FIFO"):
        Mount(tmp_path / "fifo")
    found = scan.examine(str(tmp_path))
    assert found.specials == [("fifo", "a FIFO"), ("s", "a socket")]


@pytest.mark.parametrize(
    ("value", "kind"),
    [(["/data"], TypeError), ("/data", TypeError), ({1: "x"}, TypeError), ({"/d": 3}, TypeError)],
)
def test_what_is_no_dict_of_paths_is_refused(value: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="mounts"):
        mounts(value)


def test_flags_are_true_or_false(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="writable"):
        Mount(tmp_path, writable="yes")  # type: ignore[arg-type]


def test_a_policy_and_its_toml_hold_mounts(tmp_path: Path) -> None:
    policy = Policy(mounts={"/data": tmp_path, "/out": Mount(tmp_path, writable=True)})
    file = tmp_path / "policy.toml"
    file.write_text(policy.to_toml())
    assert Policy.from_toml(file) == policy
    assert with_keywords(NORMAL, {"policy": policy}).mounts == policy.fields()["mounts"]


def test_a_look_tells_what_others_may_not_read_and_what_has_changed(tmp_path: Path) -> None:
    (tmp_path / "open.txt").write_text("1")
    (tmp_path / "closed.txt").write_text("2")
    (tmp_path / "closed.txt").chmod(0o600)
    tmp_path.chmod(0o755)
    first = scan.examine(str(tmp_path))
    assert first.private == ["closed.txt"] and first.whole and first.entries == 3
    assert scan.examine(str(tmp_path)).digest == first.digest
    (tmp_path / "open.txt").write_text("11")
    assert scan.examine(str(tmp_path)).digest != first.digest


def test_a_look_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "out").symlink_to("/etc")
    (tmp_path / "other").symlink_to("tree")
    assert scan.examine(str(tmp_path / "tree")).entries == 2
    with pytest.raises(OSError):
        scan.examine(str(tmp_path / "other" / "out"))  # a part of the path is a link
    with pytest.raises(OSError, match="symbolic link"):
        scan.examine(str(tmp_path / "other"))


def archived(root: Path, *, private: bool) -> dict[str, Any]:
    buffer = io.BytesIO()
    scan.write_archive(str(root), buffer, private)
    buffer.seek(0)
    with tarfile.open(fileobj=buffer) as archive:
        return {
            member.name: member.linkname if member.issym() else member
            for member in archive.getmembers()
        }


def test_a_copy_has_links_as_links_and_no_more_than_others_may_read(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "shut").mkdir(mode=0o700)
    (tmp_path / "shut" / "inner").write_text("x")
    (tmp_path / "key").write_text("x")
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "run.sh").write_text("x")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "passwd").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "fifo")
    few = archived(tmp_path, private=False)
    assert set(few) == {"content", "content/run.sh", "content/passwd"}
    assert few["content/passwd"] == "/etc/passwd" and few["content/run.sh"].mode == 0o755
    assert set(archived(tmp_path, private=True)) == {
        *few,
        "content/key",
        "content/shut",
        *(["content/shut/inner"]),
    }


def test_mount_is_a_name_of_the_package() -> None:
    assert hutch.Mount is _mounts.Mount
