# SPDX-License-Identifier: Apache-2.0
"""What differs between the workers of one pool."""

from __future__ import annotations

from hutch import sandbox


def test_strings_hash_otherwise_in_each_worker_and_alike_within_one() -> None:
    @sandbox(max_calls=2, labels={"test": "hash seed"})
    def told() -> int:
        return hash("a")

    seeds: dict[str, set[int]] = {}
    while len(seeds) < 3:
        outcome = told.run()
        seeds.setdefault(outcome.worker_id, set()).add(outcome.unwrap())
    assert all(len(values) == 1 for values in seeds.values())
    assert len(set.union(*seeds.values())) == 3
