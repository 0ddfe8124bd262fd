"""Store integers that are known to be small in one byte or two.

Before::

    c, r = scan[8] carry(c=z) xs(x=xs) {
      i = clamp 0 (convert_element_type[new_dtype=int32] (mul c 8.0)) 63
      yield carry(f c (gather table i)) ys(i)
    }
    g = scan[8, reverse] carry(d=ct) xs(i=r) { h d i }

After::

    c, r = scan[8] carry(c=z) xs(x=xs) {
      i = clamp 0 (convert_element_type[new_dtype=int32] (mul c 8.0)) 63
      j = convert_element_type[new_dtype=uint8] i
      yield carry(f c (gather table i)) ys(j)
    }
    g = scan[8, reverse] carry(d=ct) xs(j=r) {
      i = convert_element_type[new_dtype=int32] j
      h d i
    }

The gradient of what reads a table needs the places, of a sort the order. JAX numbers them by
integers of four bytes, or eight: a cell of a grid, a knot of a spline, a place in a sorted array, a
code of a codebook. Sound when

1. the stack is read only row by row, in loops or nests of loops of as many steps; enclosing loops
   may stack it again;
2. each number is known to be one of the narrower type (`jaxpr_opt.analysis.values.induction`).

Cost: two conversions in place of half of the bytes, or three quarters. It fires if these are much
of what a reader reads. `narrow-residuals` knows the price, and stores places in place of what is
read there.
Source: ranges of integers, as in Stephenson et al., "Bitwidth Analysis with Application to Silicon
Compilation" (PLDI 2000).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from jax import lax

from jaxpr_opt.analysis.residuals.fewer_bytes import why_stored_whole
from jaxpr_opt.analysis.residuals.narrow_integers import narrow_bytes, narrowed
from jaxpr_opt.builders.residual_transfer import restack, stacked
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Scan, Stack
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class SmallIntegers(Match):
    """The stacks of integers of a loop, each with the type that holds them."""

    op: Scan
    stacks: Mapping[Stack, np.dtype]


@dataclass(frozen=True)
class StackNarrowIntegers(Pass[SmallIntegers]):
    """Stacks of integers -> of the narrowest that hold them."""

    name: ClassVar[str] = "stack-narrow-integers"
    whole_arrays: ClassVar[bool] = True
    thrifty: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[SmallIntegers]:
        stacks = narrowed(op)  # (1, 2)
        if stacks:
            types = " and ".join(dict.fromkeys(dtype.name for dtype in stacks.values()))
            labels = ", ".join(dict.fromkeys(stack.value.label for stack in stacks))
            first = next(iter(stacks))
            says = f"{labels} is stored as {types}"
            yield SmallIntegers(op, says, stacks, at=first.value.op, about=first.result)

    def refuse(self, match: SmallIntegers) -> str | None:
        saved = sum(s.value.nbytes - narrow_bytes(s.value, t) for s, t in match.stacks.items())
        return why_stored_whole(saved, match.stacks)

    def rewrite(self, match: SmallIntegers, rw: Rewriter) -> None:
        scan, instead = match.op, {}
        for stack, dtype in match.stacks.items():
            back = partial(lax.convert_element_type, new_dtype=stack.value.dtype)
            narrow = partial(lax.convert_element_type, new_dtype=dtype)
            made = rw.insert(narrow, stack.value, before=scan.body.terminator)
            instead[stack] = stacked(made, scan, rw), back
        restack(scan, instead, rw)
