"""The values that cheap ops compute others from, and whether those are smaller.

A set of origins is an integer with one bit for each: in long straight-line code every value has
many, most of them those of the value before, and the union of two sets takes no time.
"""

from __future__ import annotations

from collections.abc import Iterable

from jaxpr_opt.ir.dataflow import backward_slice
from jaxpr_opt.ir.graph import Constant, Value
from jaxpr_opt.ir.traits import is_cheap


class Origins:
    """Finds the arguments, and results of expensive ops, that cheap ops compute values from."""

    def __init__(self, values: Iterable[Value]) -> None:
        self._behind: dict[Value, int] = {}
        self._numbered: list[Value] = []
        self._of_size: dict[int, int] = {}
        """The origins of each number of bytes."""
        for op in backward_slice(values, is_origin):
            behind = 0
            for value in op.operands:
                behind |= self._behind[value] if value in self._behind else self._number(value)
            self._behind.update(dict.fromkeys(op.results, behind))

    def _number(self, value: Value) -> int:
        """The set of one new origin; that of none for a constant."""
        number = 0
        if not isinstance(value, Constant):
            number = 1 << len(self._numbered)
            self._numbered.append(value)
            self._of_size[value.nbytes] = self._of_size.get(value.nbytes, 0) | number
        self._behind[value] = number
        return number

    def are_smaller(self, value: Value) -> bool:
        """Whether the origins of a value have fewer bytes than it has."""
        if is_origin(value):
            return False
        behind = self._behind[value]
        made = (size * (behind & of_size).bit_count() for size, of_size in self._of_size.items())
        return sum(made) < value.nbytes

    def of(self, values: Iterable[Value]) -> list[Value]:
        """The origins of values, each once."""
        behind = 0
        for value in values:
            behind |= self._behind[value]
        return [v for i, v in enumerate(self._numbered) if behind >> i & 1]


def is_origin(value: Value) -> bool:
    """Whether a value is not made by a cheap op."""
    return value.op is None or not is_cheap(value.op)
