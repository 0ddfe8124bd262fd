"""Multiply the rows that are written into zeros, not the zeros with them.

Before::

    d = dynamic_update_slice z c i 0            # z is zeros
    x1 = dot_general[contract=1x1] d w
    w1 = dot_general[contract=0x0] x d

After::

    e = dot_general[contract=1x1] c w
    x1 = dynamic_update_slice y e i 0           # y is zeros
    s = dynamic_slice x i 0
    w1 = dot_general[contract=0x0] s c

A step that reads a row of a product transposes it by the products of a cotangent that is zero in
all other rows. Sound, up to rounding, when

1. a factor is zeros but for a window that is written;
2. the other factor is read at that window, along axes that are multiplied in pairs; along others
   the window is one of the result;
3. the product is one of a cotangent with what is none, in a loop of cotangents: its zeros are
   symbolic, as in `map-before-writing`.

Cost: the window instead of the array, if it is a small part of it. Where JAX differentiates what
`compute-read-rows` has made of the product that is read, there are no zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.enclosing import loop_of
from jaxpr_opt.analysis.values.linearity import is_product_of_cotangent
from jaxpr_opt.builders.written_factors import product_of_window
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class WrittenFactor(Match):
    """A product of which one factor is a window in zeros."""

    position: int
    """Of the factor."""
    write: Op


@dataclass(frozen=True)
class MultiplyWrittenRows(Pass[WrittenFactor]):
    """A product of a window in zeros -> of the window."""

    name: ClassVar[str] = "multiply-written-rows"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = frozenset({"dot_general"})
    needs: ClassVar[frozenset[str]] = frozenset({"dynamic_update_slice"})

    @property
    def rounds(self) -> bool:
        return True

    def find(self, op: Op) -> Iterator[WrittenFactor]:
        for position, factor in enumerate(op.operands):
            write = factor.op
            if write is None or write.name != "dynamic_update_slice":
                continue
            if uniform(write.operands[0]) == 0:  # (1)
                window = bytes_text(write.operands[1].nbytes)
                says = (
                    f"{window} are multiplied, not {bytes_text(factor.nbytes)} of zeros with them"
                )
                yield WrittenFactor(op, says, position, write, about=factor)

    def refuse(self, match: WrittenFactor) -> str | None:
        factor, other = match.write.result, match.op.operands[1 - match.position]
        if not cost_model().is_sparse(match.write.operands[1].nbytes, factor.nbytes):
            return f"what is written is most of {factor.label}"
        if not is_product_of_cotangent(factor, other, loop_of(match.op)):  # (3)
            return f"{other.label} may be infinite, and zero times it is no zero"
        return None

    def rewrite(self, match: WrittenFactor, rw: Rewriter) -> None:
        rw.replace(match.op.result, product_of_window(match.op, match.position, match.write, rw))
        rw.erase(match.op)
