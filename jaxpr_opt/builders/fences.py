"""Fences: reads before a fence run before anything after it, and XLA does not repeat them there.

XLA orders ops only by their data dependences, and fuses them across everything that it can analyse.
A fence is the identity for everyone but XLA. `ir.devices.fence` says which kind works.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxpr_opt.bridge import compat_types, dtypes
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.dataflow import depending_on
from jaxpr_opt.ir.devices import fence
from jaxpr_opt.ir.graph import Constant, Op, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import is_data_movement


def barrier(
    rw: Rewriter, values: Sequence[Value], before: Op, but: Iterable[Op] = ()
) -> tuple[Value, ...]:
    """Put values behind an optimization barrier, for all their readers except the ops in `but`."""
    return _through(rw, lambda *given: lax.optimization_barrier(given), values, before, but)


def division(
    rw: Rewriter, values: Sequence[Value], before: Op, but: Iterable[Op] = ()
) -> tuple[Value, ...]:
    """Put values behind a division by one, for all their readers except the ops in `but`; return
    the quotients, which are integers.

    XLA does not divide again in each fusion that reads a quotient.  It does not find out either
    that no integer has more bits set than its width, so that each is divided by one.  LLVM does:
    when the program runs, nothing is divided.
    """

    def program(*given: jax.Array) -> tuple[jax.Array, ...]:
        same, quotients = zip(*map(_divided, given), strict=True)
        return (*same, *itertools.chain(*quotients))

    return _through(rw, program, values, before, but)[len(values) :]


def until(rw: Rewriter, number: Value, quotients: Sequence[Value], before: Op) -> Value:
    """An integer, or a truth value, that waits for quotients: it is added to zeros made of them."""

    def program(number: jax.Array, *given: jax.Array) -> jax.Array:
        firsts = (lax.slice(each, (0,) * each.ndim, (1,) * each.ndim) for each in given)
        zeros = (_zeros(first).reshape(()) for first in firsts)
        if number.dtype == bool:
            return functools.reduce(lax.bitwise_or, (zero != 0 for zero in zeros), number)
        return jnp.add(number, functools.reduce(lax.add, (z.astype(number.dtype) for z in zeros)))

    return rw.typed(program, number.aval, number, *quotients, before=before)


def waiting(
    rw: Rewriter, values: Sequence[Value], signal: Value, before: Op
) -> tuple[tuple[Value, ...], Value]:
    """The values as ops read them that must wait for `signal`, and the signal as its other readers
    read it.

    XLA neither merges what is computed from such values with what is computed from the values
    themselves, nor computes it earlier.  Where it drops barriers, each value is chosen instead by a
    predicate that is always true, and made of bits of the signal: no number has more bits set than
    its width.
    """
    *made, same = rw.insert_many(
        lambda *given: lax.optimization_barrier(given), *values, signal, before=before
    )
    if fence() == "division":
        made = list(rw.insert_many(_chosen, *made, same, before=before))
    return tuple(made), same


def _chosen(*given: jax.Array) -> tuple[jax.Array, ...]:
    *values, signal = given
    bits = _bits(lax.slice(signal, (0,) * signal.ndim, (1,) * signal.ndim).reshape(()))
    there = lax.eq(_zeros(bits), lax.full_like(bits, 0))
    return tuple(_or_zeros(there, value) for value in values)


def _or_zeros(there: jax.Array, value: jax.Array) -> jax.Array:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = _or_zeros(there, jax.random.key_data(value))
        key: jax.Array = jax.random.wrap_key_data(data, impl=jax.random.key_impl(value))
        return key
    return lax.select(lax.broadcast(there, value.shape), value, jnp.zeros_like(value))


def can_be_divided(value: Value) -> bool:
    """Whether a value has bits that a division can work on. Keys hide theirs."""
    return dtypes.is_of_bytes(value.dtype) and value.nbytes > 0


def why_no_fence(array: Value) -> str | None:
    """Why no fence keeps reads and writes of an array apart."""
    # Condition 5 of read-before-overwriting.
    # Condition 4 of read-after-writing.
    if fence() is None:
        return "this version of XLA drops barriers before it places copies"
    # Condition 5 of read-before-overwriting.
    # Condition 4 of read-after-writing.
    if fence() == "division" and not can_be_divided(array):
        return f"{array.label} is not of numbers that a division can fence"
    return None


def from_memory(value: Value, rw: Rewriter) -> Value:
    """The value as a reader computes with it that loads it from memory.

    XLA multiplies by a number that is made of a truth value by selecting, so that 0 * NaN is 0, if
    it sees the truth value.  It does not look through a select of one and zero.
    """
    moved: list[Op] = []
    op = value.op
    while op is not None and not _makes_number_of_truth(op):
        moving = [v for v in op.operands if not isinstance(v, Constant)]
        if len(moving) != 1 or not (is_data_movement(op) or op.name == "sub"):
            return value
        moved.append(op)
        op = moving[0].op
    if op is None or value.op is None or op.region is not value.op.region:
        return value
    after, aval = value.op.next, op.result.aval
    assert after is not None
    chosen = rw.typed(lambda p: one_or_zero(p, aval.dtype), aval, op.operands[0], before=after)
    return rw.clone(reversed(moved), {op.result: chosen}, after)[value]


def _makes_number_of_truth(op: Op) -> bool:
    """Whether an op makes the numbers one and zero of truth values, that NaN may be multiplied
    with.
    """
    if op.name != "convert_element_type" or op.operands[0].dtype != bool:
        return False
    return dtypes.is_inexact(op.result.dtype) and dtypes.has_zero(op.result.dtype)


def one_or_zero(truth: jax.Array, dtype: Any) -> jax.Array:
    """A truth value as a number, of which XLA does not see that it is made of one."""
    return lax.select_n(truth, *(lax.full_like(truth, x, dtype) for x in (0, 1)))


def can_signal(value: Value) -> bool:
    """Whether values can wait for this one: it has bits, of numbers that are not complex."""
    return can_be_divided(value) and not jnp.issubdtype(value.dtype, jnp.complexfloating)


def _divided(x: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    """The array put together again from its quotients, and the quotients."""
    if jnp.iscomplexobj(x):
        (real, first), (imag, second) = _divided(lax.real(x)), _divided(lax.imag(x))
        return lax.complex(real, imag), first + second
    bits = _bits(x)
    quotient = lax.div(bits, lax.add(_zeros(bits), lax.full_like(bits, 1)))
    if x.dtype == jnp.bool_:
        return quotient.astype(jnp.bool_), [quotient]
    same = lax.bitcast_convert_type(quotient, x.dtype)
    return compat_types.weaken(same, compat_types.aval_of(x)), [quotient]


def _bits(x: jax.Array) -> jax.Array:
    """The bits of real numbers, as integers."""
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint8)
    return lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))


def _zeros(bits: jax.Array) -> jax.Array:
    """Zero for any bits: the number of set bits, divided by more than the width."""
    shift = (8 * bits.dtype.itemsize).bit_length()
    return lax.shift_right_logical(lax.population_count(bits), lax.full_like(bits, shift))


def _through(
    rw: Rewriter,
    made_by: Callable[..., Sequence[jax.Array]],
    values: Sequence[Value],
    before: Op,
    but: Iterable[Op],
) -> tuple[Value, ...]:
    """Make a fence of values before an op, and let their readers read it, except ops in `but` and
    inside these.
    """
    unfenced = {each for op in but for each in op.walk()}
    uses = [{use for use in value.uses if use.op not in unfenced} for value in values]
    made = rw.insert_many(made_by, *values, before=before)
    for old, new, fenced in zip(values, made, uses, strict=False):
        rw.replace(old, new, fenced.__contains__)
    return made


def made_on_the_way(reads: list[Value], first: dict[Op, None]) -> Iterator[Value]:
    """Indices that are computed from what is read before the fence and needed after it, too: XLA
    would repeat the read for them.
    """
    for op in depending_on(reads, first):
        is_repeated = cost_model().is_repeated(op)
        if is_repeated and can_be_divided(op.result) and {*op.result.users} - first.keys():
            yield op.result
