"""Which loops XLA:CPU can compile as one function, with the ops in them.

Such a function is compiled by an older part of XLA, which has no code for sorts, Fourier
transforms, products of matrices and reductions of large arrays (a library computes those), nor for
scatters of several windows: a loop must write them one by one.  It ends the process at a large
constant that is an argument of a loop or branch inside, and at a donated array of no elements.  An
op that is not known to work is not tried.
"""

from __future__ import annotations

from math import prod

import jax.numpy as jnp

from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.compat_devices import LARGEST_CONSTANT
from jaxpr_opt.bridge.parameters import combiner_of, has_unique_indices, numbers_of
from jaxpr_opt.cost.fusion import ELEMENTS_MULTIPLIED, ELEMENTS_SUMMED
from jaxpr_opt.cost.limits import ARRAYS_OF_A_FUNCTION
from jaxpr_opt.cost.reuse import is_view
from jaxpr_opt.cost.windows import READS, WINDOW_WRITES, windows_of
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Cond, Constant, Op, Scan, Value, While, is_sized
from jaxpr_opt.ir.traits import (
    ARRANGING,
    BARRIER,
    CUMULATIVE,
    ELEMENTWISE,
    MOVING,
    REDUCING,
    SCATTERING,
    is_broadcast,
    is_large_constant,
)
from jaxpr_opt.ir.unrolling import steps_as_one

KNOWN = (
    ELEMENTWISE | MOVING | ARRANGING | REDUCING | CUMULATIVE | READS | WINDOW_WRITES
    | frozenset({
        "bitcast_convert_type", "dot_general", "random_bits", "random_fold_in", "random_seed",
        "random_split", "random_unwrap", "random_wrap", "threefry2x32", BARRIER,
    })
)  # fmt: skip
"""Ops that are known to work."""

PARTS = WINDOW_WRITES | {"clamp", "concatenate", "pad", "select_n", "stack"}
"""Ops whose result may turn out to be one of their operands."""

PLACES = ("int32", "int64")
"""Types of indices that also number the rows of a batch."""

TYPES = frozenset({
    "bfloat16", "bool", "complex128", "complex64", "float16", "float32", "float64", "int16",
    "int32", "int64", "int8", "key<fry>", "uint16", "uint32", "uint64", "uint8",
})  # fmt: skip
"""Types of which they are."""


@remembered
def unknown_op(loop: Op) -> Op | None:
    """The first op of a loop, itself included, that is not known to work; None if all are."""
    return next((op for op in loop.walk() if not is_known(op)), None)


def makes_large_constant(loop: Op) -> bool:
    """Whether XLA may find that an op of a loop makes a large constant."""
    known = dict[Value, bool | None]()

    def is_constant(value: Value) -> bool | None:
        """None where it is the same number everywhere, or an `iota`, which XLA writes when it
        runs.
        """
        if isinstance(value, Constant) and not is_large_constant(value):
            return None if value.scalar is not None else True
        return known.get(value, False)

    for op in loop.walk():
        read = set(map(is_constant, op.operands))
        if op.regions or (False in read and not (op.name in PARTS and True in read)):
            continue
        known |= dict.fromkeys(op.results, None if read <= {None} and is_broadcast(op) else True)
    return any(v.nbytes > LARGEST_CONSTANT and each for v, each in known.items())


def is_left(loop: Scan | While) -> bool:
    """Whether XLA leaves a loop as it is: it takes two steps or more, each by itself, or XLA cannot
    know how many.
    """
    return isinstance(loop, While) or loop.length >= 2 * steps_as_one(loop)


def is_long_to_compile(loop: Op) -> bool:
    """Whether XLA would take long to compile a loop: it hands on many arrays, or reduces many."""
    handed = {v for op in loop.walk() for region in op.regions for v in region.outputs}
    arrays = [v for v in handed if v.op is not None and v.size > 1]
    reductions = [op for op in loop.walk() if op.name in REDUCING]
    return len(arrays) + len(reductions) > ARRAYS_OF_A_FUNCTION


def is_known(op: Op) -> bool:
    """Whether an op by itself is known to work."""
    values = [*op.operands, *op.results]
    if not all(
        is_sized(v.shape) and v.size and getattr(v.dtype, "name", "") in TYPES for v in values
    ):
        return False
    if op.regions or op.is_terminator:
        is_kept = isinstance(op, While) and op.rows is not None
        return op.is_terminator or (isinstance(op, Scan | While | Cond) and not is_kept)
    if op.name in SCATTERING and not (windows_of(op) == 1 or is_divided(op)):
        return False
    if op.name == "dot_general" and not _is_own_product(op):
        return False
    is_small = all(v.size < ELEMENTS_SUMMED for v in _computed_with(op))
    return op.name in KNOWN and not op.effects and is_small


def converted_apart(op: Op) -> int:
    """The bytes that XLA, before JAX 0.11, converts to another type to write windows of bfloat16
    one by one in a loop: all of the array for each of them.
    """
    is_converted = is_divided(op) and op.result.dtype == jnp.bfloat16
    return windows_of(op) * op.result.nbytes if is_converted else 0


def is_divided(op: Op) -> bool:
    """Whether an op writes or combines several windows, which a loop can do one by one."""
    if op.name not in SCATTERING or windows_of(op) < 2:
        return False
    if op.name == "scatter":
        return combiner_of(op) is None and op.operands[1].dtype in PLACES
    return dtypes.is_real(op.result.dtype) and op.operands[1].dtype in PLACES


def is_joined(op: Op) -> bool:
    """Whether XLA may make one op of the sum of two such: a scatter of the windows of both."""
    return op.name == "scatter-add" and windows_of(op) == 1 and not has_unique_indices(op)


def _is_own_product(op: Op) -> bool:
    """Whether XLA leaves a product of matrices to no library: one of them is a vector, or both are
    tiny.
    """
    summed, batch = numbers_of(op)
    free = [
        prod(n for axis, n in enumerate(operand.shape) if axis not in {*over, *along})
        for operand, over, along in zip(op.operands, summed, batch, strict=True)
    ]
    terms = prod(op.operands[0].shape[axis] for axis in summed[0])
    return min(free) <= 1 or max(*free, terms) < ELEMENTS_MULTIPLIED


def _computed_with(op: Op) -> list[Value]:
    """The arrays that an op computes with: not those of which it reads a window, or that it writes
    a window into.
    """
    if is_view(op):
        return []
    if op.name in READS:
        return [*op.operands[1:], *op.results]
    return list(op.operands[1:]) if op.name in WINDOW_WRITES else [*op.operands, *op.results]
