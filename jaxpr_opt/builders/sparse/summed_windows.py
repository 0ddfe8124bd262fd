"""Add windows in place: one by one, or the sums that several windows have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import jax
from jax import lax

from jaxpr_opt.analysis.sparse.scatter_chains import Chain, Piece
from jaxpr_opt.analysis.windows.access import Access
from jaxpr_opt.analysis.windows.window_primitives import written
from jaxpr_opt.bridge.compat_ad import add_cotangents
from jaxpr_opt.builders.same_op import evaluated
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def write_sum(
    array: Value,
    terms: Mapping[Value, Value | None],
    write: Access,
    sums: Sequence[Op],
    rw: Rewriter,
) -> Value:
    """The array with the window of a write replaced by the sum there of all addends, in order.

    `sums` are the additions, last to first. `terms` says of what array each summand is read; None
    if it is what is written.
    """
    arrays = [term for term in terms.values() if term is not None]

    def fun(array: jax.Array, value: jax.Array, *rest: jax.Array) -> jax.Array:
        given, at = iter(rest[: len(arrays)]), rest[len(arrays) :]
        there = {
            summand: value if term is None else write.read(next(given), *at)
            for summand, term in terms.items()
        }
        total = evaluated(reversed(sums), there)[sums[0].result]
        return written(write.op, array, total, *at)

    operands = (array, write.value, *arrays, *write.indices)
    return rw.typed(fun, array.aval, *operands, before=sums[0])


def one_by_one(chain: Chain, array: Value, op: Op, rw: Rewriter) -> Value:
    """The array with each piece added to it: the replacement of the sum `op`."""
    total = add_cotangents if op.name == "add_any" else lax.add
    for link in chain.links:
        assert isinstance(link, Piece)
        operands = (array, link.update, *link.indices)
        add = partial(link.add, total=total)
        array = rw.typed(add, op.result.aval, *operands, before=op)
    return array
