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
    (contracted, batch), rank = numbers_of(product), len(product.result.shape)
    free = len(first.shape) - len(contracted[0]) - len(batch[0])
    order = back_in_order(rank, len(batch[0]), free)
    return rw.typed(lambda x: lax.transpose(x, order), product.result.aval, there, before=product)


def back_in_order(rank: int, batch: int, free: int) -> tuple[int, ...]:
    """Where the axes of a product are in that of its factors in the other order: the last ones,
    which are of the first factor alone, come after those of the batch.
    """
    end = rank - free
    return (*range(batch), *range(end, rank), *range(batch, end))
