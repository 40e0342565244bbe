"""Makes the two filters of seccomp.json: the container's profile, and what each cell adds.

    python3 images/worker/seccomp.py          writes seccomp-worker.json and seccomp_delta.inc
    python3 images/worker/seccomp.py --check  says whether they are what it would write

A rule of seccomp.json: a name, what it does ("allow", or the errno that it answers), the reason,
the calls. With "argument": only where that argument is one of "is", has one of the bits "any", and,
with "above": [n, most], where argument n is also more than that. "otherwise": the errno for any
other value. The profile refuses what no rule names (ENOSYS), the cell's filter lets it through. The
tests of each rule are in tests/security/test_seccomp.py, by its name.
"""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MOST_INSTRUCTIONS = 30  # a cell pays about 2 us for each
Rule = dict[str, Any]


def action(does: str) -> dict[str, Any]:
    if does == "allow":
        return {"action": "SCMP_ACT_ALLOW"}
    return {"action": "SCMP_ACT_ERRNO", "errnoRet": getattr(errno, does)}


def when(argument: int, value: int, how: str = "EQ") -> dict[str, Any]:
    return {"args": [{"index": argument, "value": value, "valueTwo": 0, "op": f"SCMP_CMP_{how}"}]}


def profile(rules: list[Rule]) -> str:
    """The container's profile, as libpod reads it."""
    entries = []
    for rule in rules:
        head = {"comment": rule["reason"]} | action(rule["does"])
        names = {"names": rule["calls"]}
        if "argument" not in rule:
            entries.append(head | names)
            continue
        values = sorted(rule["is"].values())
        entries += [head | when(rule["argument"], value) | names for value in values]
        if "otherwise" in rule:
            refuse = {"comment": rule["reason"]} | action(rule["otherwise"])
            gaps = [value for value in range(values[-1]) if value not in values]
            entries += [refuse | when(rule["argument"], value) | names for value in gaps]
            entries.append(refuse | when(rule["argument"], values[-1], "GT") | names)
    lines = ",\n".join("  " + json.dumps(entry, ensure_ascii=False) for entry in entries)
    return (
        '{\n "defaultAction": "SCMP_ACT_ERRNO",\n "defaultErrnoRet": 38,\n'
        ' "architectures": ["SCMP_ARCH_X86_64"],\n "syscalls": [\n' + lines + "\n ]\n}\n"
    )


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
        assert rule["does"] == "EPERM"
        for call in rule["calls"]:
            if "argument" in rule:
                by_argument.setdefault(call, []).append(rule)
            else:
                program.add("JUMP", jump("BPF_JEQ", f"__NR_{call}"), "refuse", "", rule["rule"])
    for call in by_argument:
        program.add("JUMP", jump("BPF_JEQ", f"__NR_{call}"), call)
    program.add("RETURN", "SECCOMP_RET_ALLOW")
    for call, tried in by_argument.items():
        program.label(call)
        assert len({rule["argument"] for rule in tried}) == 1
        program.add("LOAD", f"offsetof(seccomp_data, args[{tried[0]['argument']}])")
        for rule in tried:
            if "any" in rule:
                bits = 0
                for bit in rule["any"].values():
                    bits |= bit
                program.add("JUMP", jump("BPF_JSET", hex(bits)), "refuse", "allow", rule["rule"])
                continue
            values = list(rule["is"].items())
            if "above" in rule:
                ((name, value),) = values
                assert rule is tried[-1]
                program.add("JUMP", jump("BPF_JEQ", hex(value)), "", "allow", name)
                program.add("LOAD", f"offsetof(seccomp_data, args[{rule['above'][0]}])")
                most = str(rule["above"][1])
                program.add("JUMP", jump("BPF_JGT", most), "refuse", "allow", rule["rule"])
                continue
            for at, (name, value) in enumerate(values):
                last = rule is tried[-1] and at == len(values) - 1
                program.add(
                    "JUMP", jump("BPF_JEQ", hex(value)), "refuse", "allow" if last else "", name
                )
    program.label("allow")
    program.add("RETURN", "SECCOMP_RET_ALLOW")
    program.label("refuse")
    program.add("RETURN", "SECCOMP_RET_ERRNO | EPERM")
    assert len(program.lines) <= MOST_INSTRUCTIONS, len(program.lines)
    head = "// Made by seccomp.py of seccomp.json. clang-format off\n"
    return head + program.text() + "// clang-format on\n"


def files() -> dict[Path, str]:
    rules = json.loads((HERE / "seccomp.json").read_text())
    return {
        HERE / "seccomp-worker.json": profile(rules["profile"]),
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
