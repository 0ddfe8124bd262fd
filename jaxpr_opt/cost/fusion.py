"""The rules of fusion: which ops XLA computes inside their readers, and which by themselves.

A fusion is one loop over the elements of its results. XLA computes an op inside the fusion that
reads it if that is simple: elementwise ops and data movement, for every reader again if they are
cheap. An op that needs many elements for one (a product, a reduction, a sort) starts a loop of its
own.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import jax.numpy as jnp

from jaxpr_opt.bridge.parameters import axes_of, dimension_of, numbers_of
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.dataflow import inputs
from jaxpr_opt.ir.facts import memory
from jaxpr_opt.ir.graph import Constant, Op, Region, Value
from jaxpr_opt.ir.traits import ARRANGING, ELEMENTWISE, is_broadcast, is_cheap

NEVER_REPEATED = frozenset({
    "atan2", "cbrt", "div", "erf", "exp", "exp2", "expm1", "log", "log1p", "logistic", "pow", "rem",
    "rsqrt", "sqrt", "tan", "tanh",
})  # fmt: skip
"""Elementwise ops that XLA deems too expensive to compute once for each fusion that reads them."""

ONE_INSTRUCTION = frozenset({"exp", "exp2"})
"""Those of them that are one instruction of a GPU, and computed for each fusion there."""

PUT_TOGETHER = frozenset({"concatenate", "pad", "stack"})
"""Ops that XLA computes once for each fusion that reads them, though each element is a choice."""

FUSED_REDUCTIONS = frozenset({"reduce_max", "reduce_min", "reduce_sum"})

SUMMED_INSIDE = frozenset({
    "abs", "add", "add_any", "ceil", "convert_element_type", "cos", "div", "erf", "exp", "expm1",
    "floor", "integer_pow", "log", "log1p", "logistic", "max", "min", "mul", "neg", "pow", "round",
    "rsqrt", "sign", "sin", "sqrt", "square", "sub", "tanh",
})  # fmt: skip
"""Elementwise ops that the library which XLA:CPU reduces arrays of floats with computes on the way.
All others (a choice, a comparison, a slice) are in memory before it is called."""

ELEMENTS_SUMMED = 4096
"""Elements of an array from which on it is called; so it is if few elements make a number."""

ELEMENTS_MULTIPLIED = 8
"""Rows, columns or terms from which on such a library multiplies two matrices."""

FEW_SUMMED = 32
"""How many are few."""

WINDOWS_READ = frozenset({"dynamic_slice", "gather"})

SUMMED_TYPES = frozenset({"bfloat16", "float32", "float64"})


def is_repeated(op: Op) -> bool:
    """Whether XLA may compute an op once for each fusion that reads it.

    It multiplies by the reciprocal where many numbers are divided by the same; that of a quotient
    is a second quotient, of the same numbers.
    """
    if op.name == "div" and jnp.issubdtype(op.result.dtype, jnp.inexact):
        spread = [user.result for user in op.result.users if user.name == "broadcast_in_dim"]
        by = [op.result, *spread]
        users = dict.fromkeys(user for each in by for user in each.users)
        inverting = (each for each in users if each.name == "div" and each.operands[1] in by)
        return any(map(_divides_by_one, (op, *inverting)))
    if op.name in PUT_TOGETHER or _combines_parts(op) or sums_nothing(op):
        return True
    return is_cheap(op) and op.name not in NEVER_REPEATED


def is_rounded(op: Op) -> bool:
    """Whether an op computes numbers of `bfloat16` element by element: XLA:CPU computes them in 32
    bits, and repeats no rounding.
    """
    return op.name in ELEMENTWISE and op.result.dtype.name == "bfloat16"


def _combines_parts(op: Op) -> bool:
    """Whether an op reduces rows that were put beside each other, along one axis: for XLA that is
    elementwise, ``max(stack([a, b]))`` is ``max(a, b)``.
    """
    rows = op.operands[0] if op.name in FUSED_REDUCTIONS else None
    if rows is None or rows.op is None or rows.op.name not in {"concatenate", "stack"}:
        return False
    axis = dimension_of(rows.op)
    return axes_of(op) == (axis,) and rows.shape[axis] == len(rows.op.operands)


def sums_nothing(op: Op) -> bool:
    """Whether each number of a reduction, or of a product, is made of one of each operand: for XLA
    that is elementwise.
    """
    if op.name in FUSED_REDUCTIONS:
        return op.operands[0].size == op.result.size
    if op.name != "dot_general":
        return False
    (contracted, _), _ = numbers_of(op)
    return all(op.operands[0].shape[axis] == 1 for axis in contracted)


def is_made_once(op: Op) -> bool:
    """Whether XLA computes an op of several arrays by itself, though it is cheap: an op that reads
    it needs something costly, too, that is computed of it.

    XLA computes such an op in all fusions that read it, or in none.  Of single numbers it may have
    another shape until then, and be read by one op only.
    """
    result = op.result
    arrays = {v for v in op.operands if len(v.shape) >= len(result.shape) and not _is_spread(v)}
    is_less = sum(v.nbytes for v in arrays) > result.nbytes
    if op.region is None or len(arrays) < 2 or not is_less or result.size == 1:
        return False
    above, below = _kept_around(op.region, op)
    readers = (user for user in result.users if not user.is_terminator)  # outputs are made apart
    return any(above.get(user, 0) & below[op] for user in readers)


def _kept_around(region: Region, about: Op) -> tuple[dict[Op, int], dict[Op, int]]:
    """For each op of a region, a set of numbers that XLA computes once, as bits: those that it is
    made of, and those that are made of it.
    """
    known = memory(about, _kept_around)
    if region not in known:
        kept = [op for op in region.ops if _is_kept(op)]
        itself = {op: 1 << number for number, op in enumerate(kept)}
        above, below = dict.fromkeys(region.ops, 0), dict.fromkeys(region.ops, 0)
        made_of = {op: [v.op for v in inputs(op) if v.op in above] for op in above} if kept else {}
        for op, makers in made_of.items():
            for maker in makers:
                above[op] |= above[maker] | itself.get(maker, 0)
        for op, makers in reversed(made_of.items()):
            for maker in makers:
                below[maker] |= below[op] | itself.get(op, 0)
        known[region] = above, below
    return known[region]  # type: ignore[no-any-return]


def _is_spread(value: Value) -> bool:
    """Whether a value is the same numbers repeated."""
    return isinstance(value, Constant) or (value.op is not None and is_broadcast(value.op))


def _is_kept(op: Op) -> bool:
    """Whether XLA computes a number once: it is costly, and spread, or a function that is read more
    than once; or many numbers are divided by it.
    """
    if [v.size for v in op.results] != [1] or not jnp.issubdtype(op.result.dtype, jnp.inexact):
        return False
    users = set(op.result.users)
    spreading = [user for user in users if any(v.size != 1 for v in user.results)]
    if any(user.name == "div" and user.operands[1] is op.result for user in spreading):
        return True
    if op.name == "div" and isinstance(op.operands[1], Constant):
        return False  # it multiplies by the reciprocal
    if op.name in NEVER_REPEATED:
        return bool(spreading) or len(users) > 1
    return reduces(op) and bool(spreading)


def _divides_by_one(op: Op) -> bool:
    """Whether a division is of many numbers by the same."""
    by = op.operands[1]
    return by.shape != op.result.shape or (by.op is not None and by.op.name == "broadcast_in_dim")


def reduces(op: Op) -> bool:
    """Whether an op reduces an array to one number, or to one for each row."""
    return op.name in FUSED_REDUCTIONS or (op.name == "dot_general" and not op.result.shape)


def is_reduced_inside(reduction: Op, op: Op) -> bool:
    """Whether XLA:CPU computes an op while it reduces what comes of it."""
    if reduction.name not in FUSED_REDUCTIONS:
        return reduction.name in {"argmax", "argmin"}
    array, result = reduction.operands[0], reduction.result
    if not array.nbytes:
        return True  # its shape is a symbol
    if array.size < ELEMENTS_SUMMED and array.size > FEW_SUMMED * result.size:
        return False
    types = {value.dtype.name for value in (array, *op.operands)}
    return op.name in SUMMED_INSIDE and types <= SUMMED_TYPES


def kernels(ops: Iterable[Op]) -> int:
    """How many loops XLA makes of ops: one for each that is not fused with its readers."""
    return max(1, sum(not (is_fused(op) or op.is_terminator) for op in ops))


def own_kernels(region: Region) -> int:
    """How many loops XLA makes of a region, without those of the regions in it: what it hands on is
    one, too.
    """
    kept = (not (is_fused(op) or op.is_terminator or op.regions) for op in region.ops)
    return handed_on(region) + sum(kept)


def loops_started(region: Region) -> int:
    """How many loops XLA starts of a region, with those of functions that several ops read."""
    made = {v for v in region.outputs if v.op is not None and is_fused(v.op)}
    for op in region.ops:
        made.update(v for v in op.results if op.name in NEVER_REPEATED and len(v.uses) > 1)
    return len(made) + own_kernels(region) - handed_on(region)


def handed_on(region: Region) -> int:
    """How many of the values that a region hands on are made where they are handed on."""
    return len({v for v in region.outputs if v.op is not None and is_fused(v.op)})


def is_fused(op: Op) -> bool:
    """Whether XLA computes an op inside its readers."""
    return is_cheap(op) or op.name in ARRANGING


def numbers_read(op: Op) -> int:
    """How many numbers of windows are read where an op is computed, if that is more than one for
    each that it makes; sums of them are computed there, too.
    """
    pending, seen, count = [op], {op}, 0
    for each in islice(pending, limits.OPS_BEFORE_A_FUNCTION):
        makers = (v.op for v in each.operands if v.op is not None and v.op.region is op.region)
        for maker in makers:
            if maker not in seen and (
                is_fused(maker) or reduces(maker) or maker.name in WINDOWS_READ
            ):
                seen.add(maker)
                pending.append(maker)
                count += maker.result.size if maker.name in WINDOWS_READ else 0
    return count if count > op.result.size else 0
