"""Choose between a number and the filler of a pad, instead of padding the number.

Before::

    p = pad[padding_config=((998, 1, 0),)] x 0.0

After::

    i = iota
    q = eq i 998
    p = select_n q 0.0 x

The transpose of reading ``u[998]`` or a column ``u[:, 3]`` pads one number of each row. XLA:CPU
makes an element of a pad by a jump: it loads the number or takes the filler. LLVM computes several
elements at once nevertheless if one comparison tells where the number is, at an end of the row;
within a row it computes the whole sum of which the pad is one term element by element. A choice
loads the number in any case. Sound when

1. the pad has one number along the last axis, elements before and after it, and nothing around it
   along other axes;
2. the elements are numbers or truth values, and the place of an element is a 32-bit integer;
3. the type says of no axis that devices hold parts of it: a choice is between arrays that are
   divided in one way.

It fires in loops, on terms of sums.  Cost: none for rows of 16 numbers or more, which XLA computes
together: sums of two to five terms take 0.11 to 0.4 times as long, the gradient of a stencil with
fixed ends 0.5 to 0.9 times (400 to 40,000 numbers, matrices of 100 by 32 and 200 by 200; jax 0.10
and 0.12).  Rows of 4 to 8 numbers take up to twice as long, pads along two axes up to four times;
so do, on JAX 0.12, sums of which one number is beside the first or the last (1 to 5 times).
It waits for the final phase: other passes know pads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import padding_of
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Phase, is_sized
from jaxpr_opt.ir.nesting import is_in_a_loop
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import ELEMENTWISE


@dataclass(frozen=True)
class SelectPaddedNumbers(Pass[Match]):
    """A number with a filler around it -> a choice for each element."""

    name: ClassVar[str] = "select-padded-numbers"
    whole_arrays: ClassVar[bool] = True
    phase: ClassVar[Phase] = "final"
    primitives: ClassVar[frozenset[str]] = frozenset({"pad"})

    def find(self, op: Op) -> Iterator[Match]:
        shape, value = op.result.shape, op.operands[0]
        if not shape or not is_sized((*shape, *value.shape)):
            return
        *others, (low, high, _) = padding_of(op)
        if value.shape[-1] != 1 or low < 1 or high < 1 or any(map(any, others)):  # (1)
            return
        is_term = all(user.name in ELEMENTWISE for user in op.result.users)
        if (
            is_term
            and is_in_a_loop(op)
            and cost_model().is_padded_one_by_one(shape[-1], min(low, high))
        ):
            says = f"one of {shape[-1]:,} numbers is chosen, not padded"
            yield Match(op, says, about=op.result)

    def refuse(self, match: Match) -> str | None:
        result = match.op.result
        if not dtypes.is_array(result.dtype):  # (2)
            return f"elements of {result.type} are no numbers"
        if result.shape[-1] > np.iinfo(np.int32).max:  # (2)
            return f"{result.shape[-1]:,} numbers are too many for 32 bits"
        if is_sharded(result):  # (3)
            return "devices hold parts of it"
        return None

    def rewrite(self, match: Match, rw: Rewriter) -> None:
        op = match.op
        shape, (low, _, _) = op.result.shape, padding_of(op)[-1]

        def chosen(value: jax.Array, filler: jax.Array) -> jax.Array:
            here = lax.broadcasted_iota(jnp.int32, shape, len(shape) - 1) == low
            spread = lax.broadcast_in_dim(value, shape, range(len(shape)))
            return lax.select(here, spread, lax.broadcast(filler, shape))

        rw.replace(op.result, rw.typed(chosen, op.result.aval, *op.operands, before=op))
        rw.erase(op)
