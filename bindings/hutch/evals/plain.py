# SPDX-License-Identifier: Apache-2.0
"""What stands for a value of the code where results are compared: data that equals what it equals.
As text, since it runs inside.
"""

PLAIN = """
import collections
import collections.abc
import sys

SAME = {type(None), bool, int, float, complex, str, bytes, bytearray, range}
KEPT = {"UUID": "uuid", **dict.fromkeys(("date", "datetime", "time", "timedelta"), "datetime")}
NUMBERS = {"fractions": "Fraction", "decimal": "Decimal"}

def plain(value, other):
    "A value without classes of the code; other(value) where none equals what it equals."
    kind = type(value)
    if kind in SAME:
        return value
    for base in (list, tuple, set, frozenset):
        if isinstance(value, base):
            items = base.__iter__(value)
            if kind is base and SAME.issuperset(map(type, value)):
                return value
            return base([plain(one, other) for one in items])
    if isinstance(value, dict):
        return of_pairs(dict.items(value), other)
    if kind.__module__ == "numpy":
        return other(value) if value.dtype.hasobject else value
    if KEPT.get(kind.__qualname__) == kind.__module__:
        return value
    for module, name in NUMBERS.items():
        base = getattr(sys.modules.get(module), name, None)
        if base is not None and isinstance(value, base):
            return value if kind is base else base(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__add__(value, 0)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, complex):
        return complex.__add__(value, 0)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(memoryview(value))
    if isinstance(value, collections.abc.Mapping):
        return of_pairs(value.items(), other)
    if isinstance(value, collections.abc.Set):
        return {plain(one, other) for one in value}
    if isinstance(value, (collections.UserList, collections.UserString)):
        return plain(value.data, other)
    return other(value)

def of_pairs(pairs, other):
    return {plain(key, other): plain(item, other) for key, item in pairs}
"""
