"""Requirements: a dependency set however it is spelled, as one sorted tuple of strings.

Only names with versions, extras and markers (PEP 508) pass. Whatever would make the installer read
a file, take an option or fetch from elsewhere is refused here, in a sentence, before anything is
asked of anybody. Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from hutch._errors import RequirementError

_LENGTH = 1000  # characters of one requirement
_COUNT = 1000
_URL = re.compile(r"[A-Za-z0-9._-]+\s*(\[[^\]]*\])?\s*@\s*https?://[!#-&(-;=-\[\]-~]+(\s+;.*)?")
_BLOCK = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")


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
            f"cannot read the requirement {text!r}: {reason}",
            hint="write it as 'name', 'name>=1.2' or 'name[extra]==1.2.3'",
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
    extras = ",".join(sorted({canonicalize_name(extra) for extra in parsed.extras}))
    specifiers = ",".join(sorted({str(specifier) for specifier in parsed.specifier}))
    marker = f"; {parsed.marker}" if parsed.marker else ""
    source = f" @ {parsed.url}" if parsed.url else ""
    space = " " if source and marker else ""  # or the marker would be part of the address
    return f"{name}{f'[{extras}]' if extras else ''}{source}{specifiers}{space}{marker}"


def _refuse(given: str, text: str) -> None:
    """What is no name with a version: each kind by a sentence of its own."""
    if not text:
        raise RequirementError("a requirement is empty", hint="leave it out", requirement=given)
    if len(text) > _LENGTH:
        raise RequirementError(f"a requirement is longer than {_LENGTH} characters: {text[:60]}…")
    if any(ord(c) < 32 or c in "\x7f\u2028\u2029\x85" for c in text):
        raise RequirementError(
            f"the requirement {text!r} holds a line break or control character",
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
        raise _refusal(text, "a path", "your own code goes in by modules=")
    if before_marker.rstrip().endswith((".whl", ".tar.gz", ".zip", ".txt", ".toml")):
        raise _refusal(text, "a file", "list each requirement by its name")


def _refusal(text: str, kind: str, instead: str) -> RequirementError:
    return RequirementError(
        f"the requirement {text!r} is {kind}, which is not taken as a dependency",
        hint=instead,
        requirement=text,
    )


def inline_metadata(source: str) -> dict[str, Any] | None:
    """The PEP 723 metadata of a script: `dependencies`, `requires-python`. None: it has none."""
    blocks = [m for m in _BLOCK.finditer(source + "\n") if m.group("type") == "script"]
    if not blocks:
        return None
    if len(blocks) > 1:
        raise RequirementError("the script has more than one `# /// script` block")
    lines = blocks[0].group("content").splitlines()
    text = "\n".join(line[2:] if line.startswith("# ") else line[1:] for line in lines)
    metadata = _toml(text)
    found: dict[str, Any] = {}
    dependencies = metadata.get("dependencies", [])
    if not isinstance(dependencies, list) or not all(isinstance(x, str) for x in dependencies):
        raise RequirementError("`dependencies` in the script's metadata is no list of strings")
    found["dependencies"] = dependencies
    python = metadata.get("requires-python")
    if python is not None:
        if not isinstance(python, str):
            raise RequirementError("`requires-python` in the script's metadata is no string")
        found["requires-python"] = python
    return found


def _toml(text: str) -> dict[str, Any]:
    import sys

    if sys.version_info >= (3, 11):
        import tomllib

        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise RequirementError(f"the script's metadata is no TOML: {error}") from None
    return _two_keys(text)


def _two_keys(text: str) -> dict[str, Any]:
    """The two keys that PEP 723 defines, for Python 3.10, which reads no TOML."""
    import ast

    found: dict[str, Any] = {}
    for match in re.finditer(
        r"(?ms)^(dependencies|requires-python)\s*=\s*(\[.*?\]\s*$|\"[^\"\n]*\"|'[^'\n]*')", text
    ):
        body = re.sub(r"(?m)#[^\"'\n]*$", "", match.group(2))
        try:
            found[match.group(1)] = ast.literal_eval(body)
        except (ValueError, SyntaxError):
            raise RequirementError("the script's metadata is no TOML") from None
    for key in ("dependencies", "requires-python"):
        if key not in found and re.search(rf"(?m)^{key}\s*=", text):
            raise RequirementError(f"`{key}` in the script's metadata is no list or no string")
    return found


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
        except InvalidSpecifier:
            raise RequirementError(f"cannot read requires-python {python!r}") from None
        if not fits:
            raise RequirementError(
                f"the script requires Python {python}; the sandbox has "
                f"{platform.python_version()}, as this interpreter",
                hint="run it from an interpreter that fits",
            )
    return normalize(metadata["dependencies"])
