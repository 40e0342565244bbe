# SPDX-License-Identifier: Apache-2.0
"""Requirements: a dependency set however it is spelled, as one sorted tuple of strings.

Only names with versions, extras and markers (PEP 508) pass. Whatever would make the installer read
a file, take an option or fetch from elsewhere is refused here, in a sentence, before anything is
downloaded. Pure functions, whose time grows with the length of the text alone: the text may be
hostile, and is read outside of any sandbox.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from hutch._errors import RequirementError
from hutch._options.checks import without_credentials

_LENGTH = 1000  # characters of one requirement
_COUNT = 1000
_URL = re.compile(r"[A-Za-z0-9._-]+\s*(\[[^\]]*\])?\s*@\s*https?://[!#-&(-;=-\[\]-~]+(\s+;.*)?")
_URL_LENGTH = 4000
_OPENING = re.compile(r"# /// ([a-zA-Z0-9-]+)")
_METADATA = 65_536  # characters of a script's metadata
_NESTING = 64  # of TOML's brackets, and parts of its dotted names
_TOML_PART = re.compile(
    r"""(?sx) (?P<long> \"{3} | '{3} ) | (?P<basic> "(?:[^"\\\n]|\\.)*" ) | (?P<plain> '[^'\n]*' )
    | \#[^\n]* | (?P<mark> [][{}.,=\n] )"""
)


def normalize(items: Iterable[Any], urls: bool = False) -> tuple[str, ...]:
    """The set that the items mean: order, spelling, spaces and repetition make no difference.
    `urls`: `name @ https://...` passes too.

    Raises RequirementError, or TypeError for what is no str.
    """
    items = list(items)
    if len(items) > _COUNT:
        raise RequirementError(f"{len(items)} requirements; at most {_COUNT} are taken")
    return tuple(sorted({_one(item, urls) for item in items}))


def _one(item: Any, urls: bool) -> str:
    if not isinstance(item, str):
        raise TypeError(
            f"a requirement is a str like 'pandas>=2', not {type(item).__name__}: {item!r:.80}"
        )
    text = item.strip()
    if len(text) > (_URL_LENGTH if urls else _LENGTH):
        raise RequirementError(
            f"a requirement is longer than {_LENGTH} characters: {without_credentials(text)[:60]}…"
        )
    url = _URL.fullmatch(text) if urls else None
    if url is None:
        _refuse(item, text)
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    try:
        parsed = Requirement(text)
    except InvalidRequirement as error:
        reason = str(error).strip().splitlines()[0]
        raise RequirementError(
            f"cannot read the requirement {without_credentials(text)!r}: {reason}",
            hint="write it as 'name', 'name>=1.2' or 'name[extra]==1.2.3'",
            requirement=text,
        ) from None
    except RecursionError:
        raise RequirementError(
            f"the requirement {without_credentials(text)[:60]!r}… is nested too deeply",
            hint="write it without so many parentheses",
            requirement=text,
        ) from None
    if parsed.url and re.match(r"https?://[^/]*@", parsed.url):
        raise RequirementError(
            f"the address of {parsed.name} holds a user or password, which would be kept with it",
            hint="give them in ~/.netrc",
        )
    if parsed.url and url is None:
        raise _refusal(text, "a URL", "give its name and version")
    name = canonicalize_name(parsed.name)
    if not name[-1:].isalnum():  # packaging takes "a_", and no index does
        raise RequirementError(
            f"cannot read the requirement {text!r}: a name ends in a letter or digit",
            hint="write it as 'name', 'name>=1.2' or 'name[extra]==1.2.3'",
            requirement=text,
        )
    if not parsed.marker and not parsed.url:
        _refuse_import_name(parsed.name, bool(parsed.specifier or parsed.extras), text)
    extras = ",".join(sorted({canonicalize_name(extra) for extra in parsed.extras}))
    specifiers = ",".join(sorted({str(specifier) for specifier in parsed.specifier}))
    marker = f"; {parsed.marker}" if parsed.marker else ""
    source = f" @ {parsed.url}" if parsed.url else ""
    space = " " if source and marker else ""  # or the marker would be part of the address
    return f"{name}{f'[{extras}]' if extras else ''}{source}{specifiers}{space}{marker}"


def _refuse_import_name(name: str, narrowed: bool, text: str) -> None:
    """Names under which something is imported, and nothing is installed.

    narrowed: by a version or extras, as in `configparser>=5`: who writes that means the project.
    """
    import sys

    from packaging.utils import canonicalize_name

    from hutch._distributions import DISTRIBUTIONS, NO_PROJECTS

    name = canonicalize_name(name)
    for imported in NO_PROJECTS:
        if name == canonicalize_name(imported):
            raise RequirementError(
                f"{imported!r} is imported under that name, and installed as"
                f" {DISTRIBUTIONS[imported]!r}",
                hint=f'write "{DISTRIBUTIONS[imported]}"',
                requirement=text,
            )
    if name in sys.stdlib_module_names and not narrowed:
        raise RequirementError(
            f"{name!r} is a part of Python: nothing has to be installed for it",
            hint=f'leave it out; a project of that name is asked for by a version: "{name}>=0"',
            requirement=text,
        )


def _refuse(given: str, text: str) -> None:
    """What is not a name with a version: each kind by a sentence of its own."""
    if not text:
        raise RequirementError("a requirement is empty", hint="leave it out", requirement=given)
    if len(text) > _LENGTH:
        raise RequirementError(
            f"a requirement is longer than {_LENGTH} characters: {without_credentials(text)[:60]}…"
        )
    if any(ord(c) < 32 or c in "\x7f\u2028\u2029\x85" for c in text):
        raise RequirementError(
            f"the requirement {without_credentials(text)!r} holds a line break or control "
            "character",
            hint="give each requirement as an item of its own",
            requirement=text,
        )
    if text.startswith("-"):
        raise _refusal(text, "an option of the installer", "list each requirement by its name")
    before_marker = text.split(";", 1)[0]
    if re.match(r"(git|hg|svn|bzr)\+", before_marker) or re.search(
        r"@\s*(git|hg|svn|bzr)\+", before_marker
    ):
        raise _refusal(text, "a repository", "give the name and version of a release")
    if "://" in before_marker or re.match(r"[^@\[]+@\s*\S", before_marker):
        raise _refusal(text, "a URL", "give its name and version")
    if before_marker.startswith((".", "~")) or "/" in before_marker or "\\" in before_marker:
        raise _refusal(text, "a path", "pass your own code by modules=")
    if before_marker.rstrip().endswith((".whl", ".tar.gz", ".zip", ".txt", ".toml")):
        raise _refusal(text, "a file", "list each requirement by its name")


def _refusal(text: str, kind: str, instead: str) -> RequirementError:
    return RequirementError(
        f"the requirement {without_credentials(text)!r} is {kind}, which is not accepted as a "
        "dependency",
        hint=instead,
        requirement=text,
    )


def _blocks(source: str) -> Iterator[tuple[str, list[str]]]:
    """The types and lines of the blocks of PEP 723: each reaches from its opening line to the last
    closing one among the comments that follow.
    """
    if "# ///" not in source:
        return
    lines = source.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    end = closing = 0  # of the comments around `i`: the line after them, and the last closing line
    i = 0
    while i < len(lines):
        if not lines[i].startswith("# ///"):
            i += 1
            continue
        if i >= end:
            end, closing = i, -1
            while end < len(lines) and (lines[end] == "#" or lines[end].startswith("# ")):
                if lines[end] == "# ///":
                    closing = end
                end += 1
        opening = _OPENING.fullmatch(lines[i])
        if opening is None or closing < i + 2:
            i += 1
            continue
        yield opening[1], lines[i + 1 : closing]
        i = closing + 1


def inline_metadata(source: str) -> dict[str, Any] | None:
    """The PEP 723 metadata of a script: `dependencies`, `requires-python`. None: it has none."""
    blocks = [lines for kind, lines in _blocks(source) if kind == "script"]
    if not blocks:
        return None
    if len(blocks) > 1:
        raise RequirementError("the script has more than one `# /// script` block")
    text = "\n".join(line[2:] if line.startswith("# ") else line[1:] for line in blocks[0])
    if len(text) > _METADATA:
        raise RequirementError(f"the script's metadata is longer than {_METADATA:,} characters")
    metadata = _toml(text)
    found: dict[str, Any] = {}
    dependencies = metadata.get("dependencies", [])
    if not isinstance(dependencies, list) or not all(isinstance(x, str) for x in dependencies):
        raise RequirementError("`dependencies` in the script's metadata is not a list of strings")
    found["dependencies"] = dependencies
    python = metadata.get("requires-python")
    if python is not None:
        if not isinstance(python, str) or len(python) > _LENGTH:
            raise RequirementError("`requires-python` in the script's metadata is not a string")
        found["requires-python"] = python
    return found


def _toml(text: str) -> dict[str, Any]:
    import sys

    _refuse_deep_toml(text)
    if sys.version_info >= (3, 11):
        import tomllib

        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # also of numbers of many digits
            raise RequirementError(f"the script's metadata is not valid TOML: {error}") from None
    return _two_keys(text)


def _refuse_deep_toml(text: str) -> None:
    """Refuses what a reader of TOML would take more than linear time for, or its whole stack."""
    depth = parts = at = 0
    while found := _TOML_PART.search(text, at):
        at = found.end()
        if quotes := found["long"]:
            end = text.find(quotes, at)
            at = len(text) if end < 0 else end + 3
            continue
        mark = found["mark"]
        if mark is None:
            continue
        parts = parts + 1 if mark == "." else 0
        depth += 1 if mark in "[{" else -1 if mark in "]}" else 0
        if max(depth, parts) > _NESTING:
            raise RequirementError("the script's metadata is nested too deeply")


def _two_keys(text: str) -> dict[str, Any]:
    """The two keys that PEP 723 defines, for Python 3.10, which reads no TOML."""
    import ast

    found: dict[str, Any] = {}
    for key in ("dependencies", "requires-python"):
        name = re.search(rf"(?m)^{key}[ \t]*=\s*", text)
        if name is None:
            continue
        value = re.compile(r"(?ms)\[.*?\]\s*$|\"[^\"\n]*\"|'[^'\n]*'").match(text, name.end())
        if value is None:
            raise RequirementError(f"`{key}` in the script's metadata is not a list or a string")
        try:
            found[key] = ast.literal_eval("\n".join(map(_uncommented, value[0].split("\n"))))
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            raise RequirementError("the script's metadata is not valid TOML") from None
    return found


def _uncommented(line: str) -> str:
    """Without a comment that holds no quotes."""
    start = line.find("#", max(line.rfind('"'), line.rfind("'")) + 1)
    return line if start < 0 else line[:start]


def inline_dependencies(source: str) -> tuple[str, ...]:
    """The requirements of a script's own metadata, for `dependencies="inline"`."""
    metadata = inline_metadata(source)
    if metadata is None:
        raise RequirementError(
            'dependencies="inline", but the source has no `# /// script` block',
            hint="add one (PEP 723), or list the requirements in dependencies=",
        )
    python = metadata.get("requires-python")
    if python:
        import platform

        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        try:
            fits = SpecifierSet(python).contains(platform.python_version(), prereleases=True)
        except (InvalidSpecifier, ValueError):
            raise RequirementError(f"cannot read requires-python {python!r}") from None
        if not fits:
            raise RequirementError(
                f"the script requires Python {python}; the sandbox has "
                f"{platform.python_version()}, as this interpreter",
                hint="run it from an interpreter that fits",
            )
    return normalize(metadata["dependencies"])
