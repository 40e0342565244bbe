# SPDX-License-Identifier: Apache-2.0
"""Makes the seccomp filters from seccomp.json: the profile of a worker's container, the filter that
each cell adds to it, and the profile of a container that builds an environment.

    python3 images/worker/seccomp.py          writes seccomp-worker.json, the same for gVisor,
                                              seccomp_delta.inc, and the builder's profile
    python3 images/worker/seccomp.py --check  fails if one differs from what it would write

A rule of seccomp.json has a name ("rule"), an effect ("does"), a reason and the calls it is about.
The effect is "allow", "nothing" (the caller reads success, and nothing happens), or the errno that
the call answers. Other fields limit a rule to some arguments:

    argument   the number of the argument that is compared, with one of:
      is         it equals one of these values
      any        it has one of these bits
      more_than  it is above this number
      masked     [mask, value]: its bits in the mask equal the value
      to         every value up to this one that no other rule of the call has
    above      [n, most]: also, argument n is above `most`
    given      [n, value]: also, argument n equals the value
    otherwise  the errno for every other value of the argument, except those that other rules of
               the call handle, which are listed in "elsewhere"
    arguments  several arguments, each with "is" and, where only some bits count, "mask"; the
               combinations in "together" have the effect. "otherwise" of an argument is the errno
               for a value that is in no combination with the arguments before it

The profile refuses a call that no rule names (ENOSYS); the cell's filter lets it through. The
builder's profile is the worker's, except that the rules in "builder" replace those of the worker
for every call they name. tests/security/test_seccomp.py tries each rule of a worker by its name.

The profiles name no architecture, which stands for that of the host: calls by the numbers of
another one end the process. A name that an architecture lacks is passed over.

The profile of workers has no splice, tee, vmsplice and sendfile: they leave pages in pipes and
sockets that no process maps (for one byte of a huge or compound page, all of it), so the memory
watch does not see them. Programs then read and write, as on a kernel without these calls.
"""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MOST_INSTRUCTIONS = 47  # a cell pays about 2 us for each
Rule = dict[str, Any]


def action(does: str) -> dict[str, Any]:
    if does == "allow":
        return {"action": "SCMP_ACT_ALLOW"}
    if does == "nothing":
        return {"action": "SCMP_ACT_ERRNO", "errnoRet": 0}
    return {"action": "SCMP_ACT_ERRNO", "errnoRet": getattr(errno, does)}


def compare(argument: int, value: int, how: str = "EQ", mask: int | None = None) -> dict[str, Any]:
    if mask is not None:
        return {"index": argument, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}
    return {"index": argument, "value": value, "valueTwo": 0, "op": f"SCMP_CMP_{how}"}


def together(rule: Rule, known: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Entries of which no two match the same call: libseccomp does not say which of them would
    win. `known`: the names of the values of the arguments before."""
    arguments = rule["arguments"]
    before = [
        compare(one["argument"], one["is"][name], mask=one.get("mask"))
        for one, name in zip(arguments, known)
    ]
    if len(known) == len(arguments):
        return [{"comment": rule["reason"]} | action(rule["does"]) | {"args": before}]
    one = arguments[len(known)]
    number, mask = one["argument"], one.get("mask")
    good = [
        name
        for name in one["is"]
        if any(tuple(way[: len(known) + 1]) == (*known, name) for way in rule["together"])
    ]
    entries = [entry for name in good for entry in together(rule, (*known, name))]
    if "otherwise" not in one:
        return entries
    values = {one["is"][name] for name in good}
    refuse = {"comment": rule["reason"]} | action(one["otherwise"])
    gaps = [
        compare(number, value, mask=mask)
        for value in range(max(values) if mask is None else mask + 1)
        if value not in values and (mask is None or value & ~mask == 0)
    ]
    if mask is None:
        gaps.append(compare(number, max(values), "GT"))
    return entries + [refuse | {"args": [*before, gap]} for gap in gaps]


def values_of(rule: Rule, rules: list[Rule]) -> list[int]:
    """The values of the rule's argument for which the rule has its effect."""
    if "is" in rule:
        return sorted(rule["is"].values())
    others = {
        value
        for other in rules
        if other["calls"] == rule["calls"] and other.get("given") == rule.get("given")
        for value in other.get("is", {}).values()
    }
    return [value for value in range(rule["to"] + 1) if value not in others]


def profile(rules: list[Rule]) -> str:
    """The container's profile, as libpod reads it."""
    entries = []
    for rule in rules:
        head = {"comment": rule["reason"]} | action(rule["does"])
        names = {"names": rule["calls"]}
        if "arguments" in rule:
            entries += [entry | names for entry in together(rule)]
            continue
        if "argument" not in rule:
            entries.append(head | names)
            continue
        given = [compare(*rule["given"])] if "given" in rule else []

        def where(
            value: int, how: str = "EQ", rule: Rule = rule, given: list[Any] = given
        ) -> dict[str, Any]:
            return {"args": [*given, compare(rule["argument"], value, how)]}

        values = values_of(rule, rules)
        entries += [head | where(value) | names for value in values]
        if "otherwise" in rule:
            refuse = {"comment": rule["reason"]} | action(rule["otherwise"])
            taken = {*values, *rule.get("elsewhere", {}).values()}
            top = rule.get("to", max(taken))
            gaps = [] if "to" in rule else [v for v in range(top) if v not in taken]
            entries += [refuse | where(value) | names for value in gaps]
            entries.append(refuse | where(top, "GT") | names)
    lines = ",\n".join("  " + json.dumps(entry, ensure_ascii=False) for entry in entries)
    return (
        '{\n "defaultAction": "SCMP_ACT_ERRNO",\n "defaultErrnoRet": 38,\n'
        ' "syscalls": [\n' + lines + "\n ]\n}\n"
    )


# As runsc calls what the kernel calls otherwise.
GVISOR_NAMES = {"pselect6": "pselect"}


def for_gvisor(rule: Rule) -> Rule:
    """The rule in terms that runsc can read: it has no masks, and no answer but EPERM. Behind its
    filter is gVisor's kernel, not the host's."""
    more = [GVISOR_NAMES[name] for name in rule["calls"] if name in GVISOR_NAMES]
    if more:
        rule = rule | {"calls": rule["calls"] + more}
    if "arguments" in rule:
        first = rule["arguments"][0]
        if "mask" in first:
            return {key: rule[key] for key in ("rule", "does", "reason", "calls")}
        plain = {key: rule[key] for key in ("rule", "does", "reason", "calls")}
        return plain | {key: first[key] for key in ("argument", "is", "otherwise")}
    if rule["does"] == "nothing" or "setsockopt" in rule["calls"]:
        return {"rule": rule["rule"], "does": "allow", "reason": rule["reason"]} | {
            "calls": rule["calls"]
        }
    return rule


def for_builder(rules: list[Rule], own: list[Rule]) -> list[Rule]:
    """The rules of `rules` without the calls of those in `own`, then those."""
    replaced = {call for rule in own for call in rule["calls"]}
    kept = [
        rule | {"calls": [call for call in rule["calls"] if call not in replaced]} for rule in rules
    ]
    return [rule for rule in kept if rule["calls"]] + own


class Program:
    """Instructions whose jumps name labels."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str, str, str]] = []  # macro, value, true, false, comment
        self.labels: dict[str, int] = {}

    def add(self, code: str, value: str, true: str = "", false: str = "", why: str = "") -> None:
        self.lines.append((code, value, true, false, why))

    def label(self, name: str) -> None:
        self.labels[name] = len(self.lines)

    def text(self) -> str:
        out = []
        for at, (code, value, true, false, why) in enumerate(self.lines):
            comment = f"  // {why}" if why else ""
            if code == "JUMP":
                jumps = [self.labels[name] - at - 1 if name else 0 for name in (true, false)]
                assert all(jump >= 0 for jump in jumps)
                out.append(f"{value}, {jumps[0]}, {jumps[1]}),{comment}")
            else:
                out.append(f"{code}({value}),{comment}")
        return "\n".join(out) + "\n"


def jump(test: str, value: str) -> str:
    return f"BPF_JUMP(BPF_JMP | {test} | BPF_K, {value}"


def delta(rules: list[Rule]) -> str:
    """The cell's own filter: classic BPF, one line an instruction. Only the low half of an argument
    is compared, as the kernel does for an int."""
    program = Program()
    program.add("LOAD", "offsetof(seccomp_data, arch)")
    program.add("JUMP", jump("BPF_JEQ", "kArchitecture"), "native", "", "other numbers otherwise")
    program.add("RETURN", "SECCOMP_RET_KILL_PROCESS")
    program.label("native")
    program.add("LOAD", "offsetof(seccomp_data, nr)")
    by_argument: dict[str, list[Rule]] = {}
    for rule in rules:
        assert rule["does"] == "EPERM" or "argument" not in rule
        for call in rule["calls"]:
            if "argument" in rule:
                by_argument.setdefault(call, []).append(rule)
            else:
                test = jump("BPF_JEQ", f"__NR_{call}")
                program.add("JUMP", test, rule["does"], "", rule["rule"])
    alike: list[tuple[str, list[Rule]]] = []  # the first of the calls that have the same rules
    for call, tried in by_argument.items():
        first = next((name for name, rules in alike if rules == tried), call)
        if first is call:
            alike.append((call, tried))
        program.add("JUMP", jump("BPF_JEQ", f"__NR_{call}"), first)
    program.add("RETURN", "SECCOMP_RET_ALLOW")
    for call, tried in alike:
        program.label(call)
        assert len({rule["argument"] for rule in tried}) == 1
        program.add("LOAD", f"offsetof(seccomp_data, args[{tried[0]['argument']}])")
        for rule in tried:
            if "any" in rule:
                bits = 0
                for bit in rule["any"].values():
                    bits |= bit
                program.add("JUMP", jump("BPF_JSET", hex(bits)), "EPERM", "allow", rule["rule"])
                continue
            otherwise = "allow" if rule is tried[-1] else ""
            if "more_than" in rule:
                ((name, most),) = rule["more_than"].items()
                program.add("JUMP", jump("BPF_JGT", hex(most)), "EPERM", otherwise, name)
                continue
            if "masked" in rule:
                ((name, (mask, value)),) = rule["masked"].items()
                assert rule is tried[-1]
                program.add("BPF_STMT", f"BPF_ALU | BPF_AND | BPF_K, {hex(mask)}")
                program.add("JUMP", jump("BPF_JEQ", hex(value)), "EPERM", "allow", name)
                continue
            values = list(rule["is"].items())
            if "above" in rule or "given" in rule:
                ((name, value),) = values
                assert rule is tried[-1]
                test, key = ("BPF_JGT", "above") if "above" in rule else ("BPF_JEQ", "given")
                program.add("JUMP", jump("BPF_JEQ", hex(value)), "", "allow", name)
                program.add("LOAD", f"offsetof(seccomp_data, args[{rule[key][0]}])")
                second = jump(test, str(rule[key][1]))
                program.add("JUMP", second, "EPERM", "allow", rule["rule"])
                continue
            for at, (name, value) in enumerate(values):
                last = rule is tried[-1] and at == len(values) - 1
                program.add(
                    "JUMP", jump("BPF_JEQ", hex(value)), "EPERM", "allow" if last else "", name
                )
    program.label("allow")
    program.add("RETURN", "SECCOMP_RET_ALLOW")
    for answer in sorted({rule["does"] for rule in rules}):
        program.label(answer)
        program.add("RETURN", f"SECCOMP_RET_ERRNO | {answer}")
    assert len(program.lines) <= MOST_INSTRUCTIONS, len(program.lines)
    head = "// Made by seccomp.py of seccomp.json. clang-format off\n"
    return head + program.text() + "// clang-format on\n"


def files() -> dict[Path, str]:
    rules = json.loads((HERE / "seccomp.json").read_text())
    return {
        HERE / "seccomp-worker.json": profile(rules["profile"]),
        HERE / "seccomp-gvisor.json": profile([for_gvisor(rule) for rule in rules["profile"]]),
        HERE / "seccomp_delta.inc": delta(rules["cell"]),
        HERE.parent / "environment" / "seccomp-builder.json": profile(
            for_builder(rules["profile"], rules["builder"])
        ),
    }


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        stale = [path.name for path, text in files().items() if path.read_text() != text]
        if stale:
            sys.exit(f"{', '.join(stale)}: differs from what seccomp.py makes; run it")
        return
    for path, text in files().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
