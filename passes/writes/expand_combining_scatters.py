"""Read a window, combine, and write it, instead of one op that does all three.

Before::

    c_n = scan[n] carry(c=c_0) xs(i=is, u=us) {
      d = scatter-mul c i u
      yield carry(d)
    }

After::

    c_n = scan[n] carry(c=c_0) xs(i=is, u=us) {
      r = gather c i
      s = mul r u
      d = scatter c i s
      yield carry(d)
    }

``c.at[i].multiply(u)`` and its like run in place. But for the gradient of a product JAX stores all
of the array in each step, and for the gradient of a minimum it counts ties in arrays of zeros.
Other passes optimise reads and writes. Sound when

1. it is one window, or one in each row of a batch, so that no element is combined twice
   (`jaxpr_opt.analysis.windows.access`);
2. reads mirror writes: windows out of range are clamped alike, and what is read for a dropped
   window does not matter; an array of no elements has nothing to be read;
3. the numbers are real: XLA:CPU rounds a complex product differently in a scatter.

It fires where the program computes a gradient of the loop; elsewhere XLA might copy the buffer
between the read and the write.

Cost: none once another pass has used the result.
Source: https://github.com/jax-ml/jax/issues/8192, `scatter_mul` in jax/_src/lax/slicing.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from jaxpr_opt.analysis.values.enclosing import is_differentiated
from jaxpr_opt.analysis.windows.access import Access, combined
from jaxpr_opt.analysis.windows.window_primitives import COMBINING, written
from jaxpr_opt.engine.interface import After, Match, Pass
from jaxpr_opt.ir.graph import Op, Phase
from jaxpr_opt.ir.nesting import is_in_a_loop, phase_of
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Combining(Match):
    """A scatter that combines, and its window."""

    access: Access


@dataclass(frozen=True)
class ExpandCombiningScatters(Pass[Combining]):
    """Combine in place -> read, combine, write."""

    name: ClassVar[str] = "expand-combining-scatters"
    after: ClassVar[tuple[After, ...]] = (
        After("merge-common-subexpressions", "the window it reads may have been read already"),
    )
    whole_arrays: ClassVar[bool] = True
    phase: ClassVar[Phase] = "differentiated"
    primitives: ClassVar[frozenset[str]] = frozenset(COMBINING)

    def find(self, op: Op) -> Iterator[Combining]:
        found = combined(op) if op.result.uses and is_in_a_loop(op) else None
        if found is not None:  # (1, 2)
            says = f"{op.name} of one window becomes a read and a write"
            yield Combining(op, says, found, is_cleanup=is_differentiated(op))

    def refuse(self, match: Combining) -> str | None:
        op = match.op
        if 0 in op.result.shape:  # (2)
            return "the array has no elements"
        if jnp.issubdtype(op.result.dtype, jnp.complexfloating):  # (3)
            return "XLA rounds products of complex numbers differently in a scatter"
        if phase_of(op) == "differentiated" or is_differentiated(op):
            return None
        return "the program computes no gradient of it"

    def rewrite(self, match: Combining, rw: Rewriter) -> None:
        op, window = match.op, match.access

        def expanded(array: jax.Array, index: jax.Array, update: jax.Array) -> jax.Array:
            new = COMBINING[op.name](window.read(array, index), update)
            return written(op, array, new, index)

        rw.replace(op.result, rw.typed(expanded, op.result.aval, *op.operands, before=op))
        rw.erase(op)
