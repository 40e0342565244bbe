# SPDX-License-Identifier: Apache-2.0
"""Makes the two filters of seccomp.json: the container's profile, and what each cell adds.

    python3 images/worker/seccomp.py          writes seccomp-worker.json, the same for gVisor, and
                                              seccomp_delta.inc
    python3 images/worker/seccomp.py --check  says whether they are what it would write

A rule of seccomp.json: a name, what it does ("allow", "nothing", which tells the caller that it
was done, or the errno that it answers), the reason, the calls. With "argument": only where that
argument is one of "is", has one of the bits "any", is "more_than" a number, is the second of a pair
"masked" by the first, and, with "above": [n, most], where argument n is also more than that.
"given": [n, value]: only where argument n is that. "otherwise": the errno for any other value, but
for those that other rules have "elsewhere". "to": in place of "is", every value up to that which no
other rule of the call has. With "arguments": each is one of "is" (the bits of "mask" of it, where
given), and what they are is one of "together"; "otherwise" is the errno for a value that goes with
none of those before it. The profile refuses what no rule names (ENOSYS), the cell's filter lets it
through. The tests of each rule are in tests/security/test_seccomp.py, by its name.

Of splice, tee, vmsplice and sendfile the profile has none: they leave pages in pipes and sockets
that are mapped by nobody (of a huge page or a compound one all of it, for a byte), so that no watch
sees them. Programs read and write instead, as on a kernel without them.
"""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MOST_INSTRUCTIONS = 44  # a cell pays about 2 us for each
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
    win. `known`: what the arguments before are."""
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
    values = {one["is"][name] for name in good}
    refuse = {"comment": rule["reason"]} | action(one["otherwise"])
    gaps = [
        compare(number, value, mask=mask)
        for value in range(max(values) if mask is None else mask + 1)
        if value not in values
    ]
    if mask is None:
        gaps.append(compare(number, max(values), "GT"))
    return entries + [refuse | {"args": [*before, gap]} for gap in gaps]


def values_of(rule: Rule, rules: list[Rule]) -> list[int]:
    """Of the argument that the rule looks at: those for which it does what it says."""
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
        ' "architectures": ["SCMP_ARCH_X86_64"],\n "syscalls": [\n' + lines + "\n ]\n}\n"
    )


# As runsc calls what the kernel calls otherwise.
GVISOR_NAMES = {"pselect6": "pselect"}


def for_gvisor(rule: Rule) -> Rule:
    """What runsc can read of a rule: it knows no masks, and no answer but EPERM. Behind its filter
    is gVisor's kernel, not the host's."""
    more = [GVISOR_NAMES[name] for name in rule["calls"] if name in GVISOR_NAMES]
    if more:
        rule = rule | {"calls": rule["calls"] + more}
    if "arguments" in rule:
        first = rule["arguments"][0]
        plain = {key: rule[key] for key in ("rule", "does", "reason", "calls")}
        return plain | {key: first[key] for key in ("argument", "is", "otherwise")}
    if rule["does"] == "nothing" or "setsockopt" in rule["calls"]:
        return {"rule": rule["rule"], "does": "allow", "reason": rule["reason"]} | {
            "calls": rule["calls"]
        }
    return rule


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
    is looked at, as the kernel does for an int."""
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
            if "above" in rule:
                ((name, value),) = values
                assert rule is tried[-1]
                program.add("JUMP", jump("BPF_JEQ", hex(value)), "", "allow", name)
                program.add("LOAD", f"offsetof(seccomp_data, args[{rule['above'][0]}])")
                most = str(rule["above"][1])
                program.add("JUMP", jump("BPF_JGT", most), "EPERM", "allow", rule["rule"])
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
    }


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        stale = [path.name for path, text in files().items() if path.read_text() != text]
        if stale:
            sys.exit(f"{', '.join(stale)}: not what seccomp.py makes of seccomp.json; run it")
        return
    for path, text in files().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
