"""A product of the same factors, the second one first."""

from __future__ import annotations

from functools import partial

from jax import lax

from jaxpr_opt.bridge.parameters import numbers_of, swapped
from jaxpr_opt.builders.fences import barrier
from jaxpr_opt.builders.same_op import bound
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def fenced_swapped(product: Op, rw: Rewriter) -> Value:
    """The product, of factors that change places, and its axes back in order behind a fence: XLA
    would swap the factors again.
    """
    first, second = product.operands
    multiply = partial(bound, product, params=swapped(product.params))
    made = rw.insert(multiply, second, first, before=product)
    (there,) = barrier(rw, [made], product)
    order = back_in_order(product)
    return rw.typed(lambda x: lax.transpose(x, order), product.result.aval, there, before=product)


def back_in_order(product: Op) -> tuple[int, ...]:
    """Where the axes of a product are in that of its factors in the other order."""
    (contracted, batch), second = numbers_of(product), product.operands[1]
    start, rank = len(batch[0]), len(product.result.shape)
    free = len(second.shape) - len(contracted[1]) - start
    return (*range(start), *range(start + free, rank), *range(start, start + free))
