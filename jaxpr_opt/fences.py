"""What XLA does not look through: what is read on this side of a fence has been read before
anything on the other side runs, and is not read again there.

XLA orders ops by what they need of each other, and fuses them across all that it can see through.
A fence is the identity, for everyone but XLA.  `analysis.devices.fence` tells which kind holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxpr_opt.ir import Cond, Constant, Op, Value
from jaxpr_opt.rewriter import Rewriter


def barrier(
    rw: Rewriter, values: Sequence[Value], before: Op, but: Iterable[Op] = ()
) -> tuple[Value, ...]:
    """An optimization barrier that values go through on their way to all that reads them, `but` for
    some ops.
    """
    made = rw.insert_many(lambda *given: lax.optimization_barrier(given), *values, before=before)
    _replace(rw, values, made, but)
    return made


def variable(indices: Iterable[Value]) -> Value | None:
    """An index that is not constant, for a predicate that XLA does not find out."""
    return next((v for v in indices if not isinstance(v, Constant)), None)


def branch(
    rw: Rewriter, values: Sequence[Value], clock: Value, dtype: Any, before: Op, but: Iterable[Op]
) -> Value:
    """A conditional that values go through on their way to all that reads them, `but` for some ops;
    a scalar zero that comes out of it, too.

    Its predicate always holds, which XLA does not find out: no integer, as the `clock` is one, has
    more bits than its width.
    """

    def taken(*given: jax.Array) -> tuple[jax.Array, ...]:
        return (*given, jnp.zeros((), dtype))

    def never(*given: jax.Array) -> tuple[jax.Array, ...]:
        return (*map(jnp.zeros_like, given), jnp.ones((), dtype))

    def program(clock: jax.Array, *given: jax.Array) -> tuple[jax.Array, ...]:
        number = clock.ravel()[0] if clock.ndim else clock
        always = lax.population_count(number) <= 8 * clock.dtype.itemsize
        made: tuple[jax.Array, ...] = lax.cond(always, taken, never, *given)
        return made

    *made, zero = rw.insert_many(program, clock, *values, before=before)
    _replace(rw, values, made, but)
    fence = zero.op
    assert isinstance(fence, Cond)
    end = fence.branches[True].terminator
    for value in values:
        if value.op is not None and all(use.op is end for use in value.uses):
            rw.move(value.op, end)
    return zero


def _replace(
    rw: Rewriter, values: Sequence[Value], made: Sequence[Value], but: Iterable[Op]
) -> None:
    fence = made[0].op
    assert fence is not None
    unfenced = {*fence.walk(), *(each for op in but for each in op.walk())}
    for old, new in zip(values, made, strict=True):
        rw.replace(old, new, lambda use: use.op not in unfenced)
