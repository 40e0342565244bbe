# SPDX-License-Identifier: Apache-2.0
"""`Environment` and the files that make one: what is taken, and what is refused in one sentence."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch import Environment, RequirementError
from hutch._calls.target import _installed
from hutch._carry.functions import FunctionBytes, require_function
from hutch._options import packages as _packages
from hutch._options.options import NORMAL

HASH = "a" * 64


def options(value: Any) -> Any:
    return NORMAL.changed({"environment": value})


def fields(value: Any) -> Any:
    return _packages.fields(options(value))


@pytest.fixture(autouse=True)
def no_settings_of_the_callers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX", "NETRC"):
        monkeypatch.delenv(name, raising=False)


def test_it_is_a_value() -> None:
    one = Environment(["b", "a"], constraints="a<2", index_url="https://me:pw@h/simple")
    assert one == Environment(("a", "b"), constraints=["a<2"], index_url="https://me:pw@h/simple")
    assert one != Environment(["a", "b"]) and hash(one) == hash(one)
    assert "pw" not in repr(one) and "***@h" in repr(one)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"python": "2.7"}, "write a version"),
        ({"python": "3.2"}, "the sandbox has Python"),
        ({"python": 3}, "write a version"),
        ({"index_url": "ftp://h/"}, "not a URL"),
        ({"index_url": "https://h/ x"}, "not a URL"),
        ({"extra_index_urls": ["file:///x"]}, "not a URL"),
        ({"find_links": "/no/such/place"}, "no such directory"),
        ({"base": "docker://docker.io/library/python:3.12"}, "leave out what stands before"),
        ({"base": "Python:3.12 slim"}, "not the name of an image: write one such as docker.io"),
        ({"base": ""}, "not the name of an image"),
        ({"base": "x" * 600}, "not the name of an image"),
        ({"base": "../x"}, "not the name of an image"),
        ({"base": "r/x", "python": "3"}, "write it as '3.12'"),
        ({"base": "r/x", "python": "latest"}, "write a version"),
        ({"constraints": ["-r x"]}, "option|not taken"),
        ({"dependencies": ["a @ https://h/a.whl"]}, "URL"),
    ],
)
def test_a_bad_field_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Environment(**given)


def test_the_callers_own_version_is_fine() -> None:
    Environment(python=platform.python_version())
    Environment(python=f"{sys.version_info[0]}.{sys.version_info[1]}")


def test_a_base_is_an_images_name_and_its_python_may_be_another() -> None:
    for name in (
        "python",
        "docker.io/library/python:3.12-slim",
        "127.0.0.1:5000/a/b_c:V1",
        "localhost/x",
        "[::1]:5000/x",
        "r.example/x@sha256:" + "a" * 64,
        "c3e2d73873b0",
    ):
        environment = Environment(["six"], base=f" {name} ")
        assert environment.base == name and environment.python == ""
        assert fields(environment)["base"] == name
    other = Environment(base="r/x", python="3.99")
    assert other.python == "3.99" and other != Environment(base="r/x")
    assert repr(other) == "Environment(base='r/x', python='3.99')"
    assert fields(Environment(["six"]))["base"] == ""


def test_what_a_base_brings_is_not_known_to_the_caller() -> None:
    def uses() -> object:
        return pytest.importorskip

    on_base = _installed(options(Environment(base="r/x")))
    FunctionBytes(require_function(uses), on_base).current()
    with pytest.raises(hutch.DependencyInstallError):
        FunctionBytes(require_function(uses), _installed(options(Environment()))).current()


def test_an_address_is_a_dependency_where_that_is_allowed() -> None:
    environment = Environment(["B  @  https://h/b-1.whl", "a"], allow_urls=True)
    assert environment.dependencies == ("a", "b @ https://h/b-1.whl")
    assert fields(environment)["allow_urls"] is True
    with pytest.raises(RequirementError, match="user or password"):
        Environment(["a @ https://me:pw@h/a.whl"], allow_urls=True)
    for bad in ("a @ file:///x", "a @ git+https://h/x", "git+https://h/x", "a @ ssh://h/x"):
        with pytest.raises(RequirementError):
            Environment([bad], allow_urls=True)


def test_credentials_become_a_netrc_and_are_in_no_address() -> None:
    told = fields(
        Environment(["a"], index_url="https://me:p%2Bw@h/simple", extra_index_urls="https://x/s")
    )
    assert told["index"]["index_url"] == "https://h/simple"
    assert told["index"]["netrc"] == "machine h login me password p+w\n"
    with pytest.raises(ValueError, match="build script could read"):
        fields(Environment(["a"], index_url="https://me:pw@h/simple", allow_sdists=True))


def test_the_callers_netrc_serves_the_hosts_that_are_asked_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine h login me password pw\nmachine other login you password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    told = fields(Environment(["a"], index_url="https://h/simple"))
    assert told["index"]["netrc"] == "machine h login me password pw\n"
    built = fields(Environment(["a"], index_url="https://h/simple", allow_sdists=True))
    assert built["index"]["netrc"] == ""
    told = fields(Environment(["a @ https://h/a.whl"], index_url="https://x/s", allow_urls=True))
    assert told["index"]["netrc"] == "machine h login me password pw\n"


def test_a_requirements_file_is_read_with_those_it_names(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(
        "# all\n--index-url https://h/simple\n--extra-index-url=https://x/simple\n"
        "-r base/one.txt\n-c limits.txt\nPandas>=2 ; python_version>'3'  # the frame\n"
    )
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "one.txt").write_text("six \\\n ==1.16\n-r ../requirements.txt\n")
    (tmp_path / "limits.txt").write_text("numpy<3\n")
    environment = options(str(tmp_path / "requirements.txt")).environment
    assert [item.split(";")[0] for item in environment.dependencies] == ["pandas>=2", "six==1.16"]
    assert environment.constraints == ("numpy<3",)
    assert environment.index_url == "https://h/simple"
    assert environment.extra_index_urls == ("https://x/simple",)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-e .", "option '-e'"),
        ("--pre", "option '--pre'"),
        ("--config-settings=x", "not supported"),
        ("-r /etc/passwd", "not in the directory"),
        ("-r ../outside.txt", "not in the directory"),
        ("-c link.txt", "not in the directory"),
        ("./local.whl", "path"),
        ("git+https://h/x", "repository"),
    ],
)
def test_a_line_that_leads_elsewhere_is_refused(line: str, said: str, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "outside.txt").write_text("six\n")
    (inner / "link.txt").symlink_to(tmp_path / "outside.txt")
    (inner / "requirements.txt").write_text(line + "\n")
    with pytest.raises(RequirementError, match=said):
        options(inner / "requirements.txt")


def test_requirements_with_hashes_are_a_lock_and_all_of_them_have_one(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(f"--require-hashes\nSix==1.16 \\\n  --hash=sha256:{HASH}\n")
    environment = options(file).environment
    assert environment.lock == f"six==1.16 --hash=sha256:{HASH}\n"
    assert environment.names == ("six==1.16",) and environment.dependencies == ()
    file.write_text(f"six==1.16 --hash=sha256:{HASH}\nnumpy\n")
    with pytest.raises(RequirementError, match="numpy"):
        options(file)


PYLOCK = """
lock-version = "1.0"
created-by = "x"
[[packages]]
name = "six"
version = "1.16"
"""


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", "no files"),
        ('wheels = [{ url = "https://h/six.whl", hashes = {} }]', "SHA-2"),
        ('wheels = [{ path = "six.whl", hashes = { sha256 = "aa" } }]', "address"),
        ('wheels = [{ url = "file:///six.whl", hashes = { sha256 = "aa" } }]', "address"),
        (
            'wheels = [{ url = "https://me:pw@h/six.whl", hashes = { sha256 = "aa" } }]',
            "user or password",
        ),
        ('vcs = { type = "git", url = "https://h/x" }', "vcs"),
        ('directory = { path = "." }', "directory"),
        ("[[packages", "TOML"),
    ],
)
def test_a_pylock_with_more_than_an_indexs_files_is_refused(
    more: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "pylock.toml").write_text(PYLOCK + more + "\n")
    with pytest.raises(RequirementError, match=said):
        options(tmp_path / "pylock.toml")


def test_a_pylock_is_taken_as_it_is(tmp_path: Path) -> None:
    text = PYLOCK + f'wheels = [{{ url = "https://h/six.whl", hashes = {{ sha256 = "{HASH}" }} }}]'
    (tmp_path / "pylock.dev.toml").write_text(text)
    environment = options(tmp_path / "pylock.dev.toml").environment
    assert environment.lock == text and environment.names == ("six==1.16",)
    assert fields(environment)["lock"] == text
    with pytest.raises(ValueError, match="either a lock or dependencies"):
        Environment(["six"], lock=tmp_path / "pylock.dev.toml")


def test_a_directory_has_to_be_a_virtual_environment_of_this_version(tmp_path: Path) -> None:
    place = tmp_path / "venv"
    have = ".".join(platform.python_version_tuple()[:2])
    packages = place / "lib" / f"python{have}" / "site-packages"
    (packages / "Tiny_Thing-2.0.dist-info").mkdir(parents=True)
    with pytest.raises(ValueError, match="not a virtual environment"):
        options(place)
    (place / "pyvenv.cfg").write_text("version = 3.2.1\n")
    with pytest.raises(ValueError, match=r"is of Python 3\.2"):
        options(place)
    (place / "pyvenv.cfg").write_text(f"version_info = {have}.0.final.0\n")
    environment = options(place).environment
    assert environment.venv == str(packages) and environment.names == ("tiny-thing==2.0",)


def test_other_paths_and_values_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        options(str(tmp_path / "none.txt"))
    (tmp_path / "x.cfg").write_text("")
    with pytest.raises(ValueError, match="not a requirements"):
        options(tmp_path / "x.cfg")
    with pytest.raises(TypeError, match="environment="):
        options(3)


def test_dependencies_take_the_place_of_an_environment() -> None:
    before = options(Environment(["a"], constraints="a<2"))
    assert before.changed({"dependencies": ["b"]}).environment is None
    assert before.changed({"timeout_sec": 3}).environment == before.environment


def test_links_of_a_package_bring_nothing_from_elsewhere(tmp_path: Path) -> None:
    """Whoever wrote the package might have the caller's files read so."""
    from hutch._carry import modules

    package = tmp_path / "package"
    package.mkdir()
    for path in (package / "__init__.py", package / "data", package / ".env", tmp_path / "key"):
        path.write_text("text")
    for name in ("shared.py", ".secret.py"):
        (tmp_path / name).write_text("x = 1")
    targets = {
        "hidden.py": tmp_path / ".secret.py",
        "settings.txt": tmp_path / "shared.py",
        "outside": tmp_path / "key",
        "disguised.py": tmp_path / "key",
        "hidden": package / ".env",
        "inside": package / "data",
        "source.py": tmp_path / "shared.py",
    }
    for name, target in targets.items():
        (package / name).symlink_to(target)
    (tmp_path / "linked").symlink_to(package)
    own = ["__init__.py", "data", "inside", "source.py"]
    for place in ("package", "linked"):
        found = modules.files_of([tmp_path / place])
        assert sorted(found) == [f"{place}/{name}" for name in own]


def test_a_module_that_is_a_link_to_what_would_stay_behind_is_refused(tmp_path: Path) -> None:
    from hutch._carry import modules

    hidden = tmp_path / ".keys"
    hidden.mkdir()
    (hidden / "__init__.py").write_text("")
    for name in ("key", "own.py"):
        (tmp_path / name).write_text("x = 1")
    for link, target in (("one", "key"), ("two", ".keys/__init__.py"), ("three", "own.py")):
        (tmp_path / f"{link}.py").symlink_to(tmp_path / target)
    (tmp_path / "package").symlink_to(hidden)
    for refused in ("one.py", "two.py", "package"):
        with pytest.raises(ValueError, match="a link to"):
            modules.files_of([tmp_path / refused])
    assert modules.files_of([tmp_path / "three.py"]) == {"three.py": b"x = 1"}
