"""Evaluate scalar arithmetic on constants.

Before::

    a = add 2 3
    p = lt a 7
    y = select_n p x z

After::

    y = select_n True x z

Sound when

1. operands and result are scalar booleans or integers, which NumPy computes as XLA does, wrapping
   around; or the op only makes a weak type strong;
2. the result has no weak type: a constant could not carry it.

Cost: every rule removes an op.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from jaxpr_opt.analysis.values.constants import is_weak
from jaxpr_opt.analysis.values.step_numbers import ARITHMETIC
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Constant, Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Known(Match):
    """The op's result is `number`."""

    number: Any


@dataclass(frozen=True)
class FoldConstants(Pass[Known]):
    """Compute scalar ops whose operands are constants."""

    name: ClassVar[str] = "fold-constants"
    cleanup: ClassVar[bool] = True

    primitives: ClassVar[frozenset[str]] = frozenset(ARITHMETIC)

    def find(self, op: Op) -> Iterator[Known]:
        if op.result.shape or not op.result.uses:
            return
        if all(isinstance(v, Constant) for v in op.operands) and _is_foldable(op):
            numbers = [np.asarray(v.value, v.dtype) for v in op.operands if isinstance(v, Constant)]
            with np.errstate(over="ignore"):
                number = np.asarray(ARITHMETIC[op.name](*numbers)).astype(op.result.dtype)[()]
            yield Known(op, f"{op.name} is {number}", number)

    def rewrite(self, match: Known, rw: Rewriter) -> None:
        result = match.op.result
        rw.replace(result, rw.constant(match.number, result.aval))
        rw.erase(match.op)


def _is_foldable(op: Op) -> bool:
    if is_weak(op.result):  # (2)
        return False
    if op.name == "convert_element_type" and op.operands[0].dtype == op.result.dtype:
        return isinstance(op.result.dtype, np.dtype)
    return all(_is_integral(v) for v in (*op.operands, op.result))  # (1)


def _is_integral(value: Value) -> bool:
    return not value.shape and dtypes.is_integral(value.dtype)
