"""Facts about primitives: one table for all passes.

Absence means unknown, and unknown means no. Passes call the predicates at the end of this file
instead of carrying lists of names; a new primitive is opaque to all of them until it is entered
here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from jaxpr_opt.bridge import compat
from jaxpr_opt.bridge.compat_devices import LARGEST_CONSTANT
from jaxpr_opt.bridge.parameters import filled_by, is_in_transpose
from jaxpr_opt.ir.devices import is_divided, is_manual, is_partly_manual, is_replicated
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import (
    TERMINATOR,
    UNDEFINED,
    Call,
    Cond,
    Constant,
    Op,
    Region,
    Remat,
    Scan,
    Value,
    While,
)
from jaxpr_opt.ir.nesting import phase_of

SPREADING = frozenset({"broadcast_in_dim", "iota", UNDEFINED})
"""Results are larger than what they are made from, which costs nothing to redo."""

RESHAPING = frozenset({"copy", "reshape", "squeeze", "stop_gradient"})
"""All elements of one operand, in its order."""

LAYING = RESHAPING | {"broadcast_in_dim"}
"""The same; elements may be repeated."""

VIEWING = LAYING | {"rev", "slice", "transpose"}
"""Elements of one operand as they are, at places that depend on no data."""

MOVING = VIEWING | {"convert_element_type", "iota", "tile", UNDEFINED}
"""Values are moved, not computed."""

REARRANGING = frozenset({
    "dynamic_slice", "reshape", "rev", "slice", "split", "squeeze", "stop_gradient", "transpose",
    "unstack",
})  # fmt: skip
"""Values of one operand are moved, if at all, and neither converted nor repeated."""

ARRANGING = frozenset({"concatenate", "dynamic_slice", "pad", "split", "stack", "unstack"})
"""Values are put beside each other, or taken apart."""

ELEMENTWISE = frozenset({
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh",
    "cbrt", "ceil", "clamp", "clz", "complex", "conj", "convert_element_type", "copy", "cos",
    "cosh", "div", "eq", "eq_to", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge",
    "gt", "imag", "integer_pow", "is_finite", "le", "le_to", "log", "log1p", "log2", "logistic",
    "lt", "lt_to", "max", "min", "mul", "mulhi", "name", "ne", "neg", "nextafter", "not",
    "one_minus_square", "or", "population_count", "pow", "real", "reduce_precision", "rem",
    "round", "rsqrt", "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical",
    "sign", "sin", "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor",
})  # fmt: skip
"""One element of the result needs one element of each operand."""

REDUCING = frozenset({
    "argmax", "argmin", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod",
    "reduce_sum", "reduce_xor",
})  # fmt: skip
"""A number of each row, or of all of an array."""

COMBINING = {
    "reduce_and": "and", "reduce_max": "max", "reduce_min": "min", "reduce_or": "or",
    "reduce_prod": "mul", "reduce_sum": "add", "reduce_xor": "xor",
}  # fmt: skip
"""Reductions, by the op that combines two elements."""

PICKING = frozenset({"reduce_and", "reduce_max", "reduce_min", "reduce_or"})
"""Reductions that make one of the numbers that they reduce, whatever how often that occurs."""

CUMULATIVE = frozenset({"cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum"})
"""A number for each element of a row: of all up to it."""

TRANSCENDENTAL = frozenset({
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cos", "cosh", "erf",
    "erf_inv", "erfc", "exp", "exp2", "expm1", "log", "log1p", "log2", "logistic", "pow", "sin",
    "sinh", "tan", "tanh",
})  # fmt: skip
"""Elementwise, but an element takes as long as moving ten."""

TRANSCENDENTAL_IF_COMPLEX = frozenset({"abs", "div", "integer_pow", "rsqrt", "sign", "sqrt"})
"""Of complex numbers these take as long: they are scaled, so that nothing overflows on the way."""

COMPARISONS = frozenset({"eq", "eq_to", "ge", "gt", "le", "le_to", "lt", "lt_to", "ne"})

DISCONTINUOUS = COMPARISONS | frozenset({
    "argmax", "argmin", "ceil", "floor", "is_finite", "nextafter", "rem", "round", "sign", "sort",
    "top_k",
})  # fmt: skip
"""Of floats: the last bit of an operand may change the result by more than that."""

EXACT = frozenset({
    "abs", "clamp", "complex", "conj", "copy", "cummax", "cummin", "imag", "max", "min", "neg",
    "real", "reduce_max", "reduce_min", "select_n", "stop_gradient",
})  # fmt: skip
"""They compute with floats, and round nothing."""

PRODUCTS = frozenset({"integer_pow", "mul", "square"})
"""What one instruction may compute together with a sum, rounding once."""

SUMS = frozenset({"add", "add_any"})
"""Sums of two; the second is what JAX adds cotangents by."""

OF_MATRICES = frozenset({
    "cholesky", "eig", "eigh", "geqrf", "hessenberg", "householder_product", "lu", "schur", "svd",
    "triangular_solve", "tridiagonal", "tridiagonal_solve",
})  # fmt: skip
"""Algorithms of linear algebra, for each matrix of a batch, which has rows and columns last."""

TOTAL = ELEMENTWISE | MOVING | frozenset({
    "argmax", "argmin", "bessel_i0e", "bessel_i1e", "bitcast_convert_type", "cholesky",
    "concatenate", "conv_general_dilated", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum",
    "digamma", "dot_general", "dynamic_slice", "dynamic_update_slice", "fft", "gather", "igamma",
    "igammac", "lgamma", "pad", "polygamma", "ragged_dot_general", "random_bits", "random_fold_in",
    "random_seed", "random_split", "random_unwrap", "random_wrap", "reduce_and", "reduce_max",
    "reduce_min", "reduce_or", "reduce_prod", "reduce_sum", "reduce_window_max",
    "reduce_window_min", "reduce_window_sum", "reduce_xor", "scatter", "scatter-add",
    "scatter-max", "scatter-min", "scatter-mul", "scatter-sub", "select_and_gather_add",
    "select_and_scatter_add", "sort", "split", "stack", "threefry2x32", "top_k",
    "triangular_solve", "unstack", "zeta",
})  # fmt: skip
"""First-order functions that are defined everywhere, terminate, and give the same result for the
same operands."""

DRAWING = frozenset({"random_bits", "random_gamma", "rng_bit_generator", "rng_uniform"})
"""Random numbers."""

ROUNDED_BY_PLACE = frozenset({"acosh", "asinh", "atan", "erf", "erfc"})
"""Elementwise, but XLA:CPU rounds an element of a vector otherwise than a scalar: measured, but for
`erfc`, which is made of `erf`."""

VECTOR = 8
"""Lengths whose multiples XLA:CPU computes without a remainder, which it rounds otherwise: `exp` of
three elements is not `exp` of one (jax 0.10), nor `tanh` of ten (0.12, in double precision)."""

LINEAR_IN = {
    "add_any": "all", "broadcast_in_dim": "all", "concatenate": "all", "conj": "all",
    "convert_element_type": "all", "copy": "all", "cumsum": "all", "dot_general": "any",
    "dynamic_slice": "first", "gather": "first",
    "conv_general_dilated": "any", "div": "first", "imag": "all", "mul": "any", "neg": "all",
    "pad": "all", "real": "all", "reduce_sum": "all", "reshape": "all", "rev": "all",
    "scatter": "base and updates", "scatter-add": "base and updates", "select_n": "cases",
    "slice": "all", "squeeze": "all",
    "add": "all", "sub": "all", "transpose": "all", "dynamic_update_slice": "base and updates",
    "reduce_precision": "all", "split": "all", "stack": "all", "unstack": "all",
    "custom_linear_solve": "right sides", "triangular_solve": "last", "tridiagonal_solve": "last",
}  # fmt: skip
"""Which operands must be zero for the results to be (symbolically) zero; see `linear_in`."""

SCALING = frozenset({"mul", "div", "neg", "convert_element_type", "copy", "reduce_precision"})
"""Elementwise, and zero for a zero, but for what another operand, a scalar, may be."""

ZERO_AT_ZERO = frozenset({
    "abs", "add", "add_any", "asin", "asinh", "atan", "atanh", "cbrt", "convert_element_type",
    "copy", "erf", "expm1", "log1p", "max", "min", "neg", "reduce_precision", "sign", "sin", "sinh",
    "sqrt", "square", "stop_gradient", "sub", "tan", "tanh",
})  # fmt: skip
"""Elementwise, and zero where all operands are."""

IN_PLACE = frozenset({"dynamic_update_slice", "scatter", "scatter-add", "scatter-mul"})
"""The first operand becomes the result where nobody else reads it."""

SCATTERING = frozenset({
    "scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul", "scatter-sub",
})  # fmt: skip
"""Windows of the first operand are written, or combined with others, at places that may be data."""

COLLECTIVE = frozenset({
    "all_gather", "all_gather_invariant", "all_gather_reduced", "all_to_all", "pbroadcast",
    "pbroadcast_dynamic", "pmax", "pmin", "ppermute", "precv", "preduced", "psend", "psum",
    "psum_invariant", "ragged_all_to_all", "reduce_scatter", "unreduced_pmax", "unreduced_pmin",
    "unreduced_psum", "unreduced_reduce_scatter",
})  # fmt: skip
"""Every device of an axis must take part: which branch they are in and how often they run must not
change."""

LOCAL = TOTAL | ARRANGING | frozenset({
    "addupdate", "approx_top_k", "axis_index", "cholesky_update", "dim_as_value", "dimension_size",
    "eig", "eigh", "empty", "empty2", "from_edtype", "geqp3", "geqrf", "get", "hessenberg",
    "householder_product", "igamma_grad_a", "iota_2x32_shape", "layout_constraint", "lu",
    "lu_pivots_to_permutation", "optimization_barrier", "ormqr", "polynomial", "pvary", "qr",
    "random_clone", "random_gamma", "regularized_incomplete_beta", "rng_bit_generator",
    "rng_uniform", "scaled_dot", "schur", "select_and_scatter", "svd", "swap",
    "symmetric_product", "to_edtype", "tridiagonal", "tridiagonal_solve", "zeros_like",
})  # fmt: skip
"""A device computes them by itself from its own operands, where several run them."""

TRANSPARENT = frozenset({
    "checkpoint", "closed_call", "composite", "cond", "core_call", "core_closed_call",
    "custom_jvp_call", "custom_lin", "custom_linear_solve", "custom_vjp_call", "custom_vmap_call",
    "eval_jaxpr", "jit", "linear_call", "optimized", "reduce", "reduce_window", "remat", "remat2",
    "run_state", "scan", "shard_map", "while",
})  # fmt: skip
"""They run the jaxprs in their parameters and nothing else."""

BARRIER = "optimization_barrier"
"""Its results are its operands, computed together."""

ANCHORED = frozenset({"after_all", "create_token", "dce_sink", "optimization_barrier", "tie"})
"""Without effects in JAX's eyes, but meant to stay where they are."""

UNREPEATABLE = frozenset({"rng_uniform"})
"""The same operands need not give the same result."""

_FIXED = ANCHORED | UNREPEATABLE | {TERMINATOR}


def linear_in(op: Op) -> str | None:
    """Which operands must be zero for the results to be zero; None if that is not known.

    A gather may fill what is out of range with NaN, but with no other number.
    """
    filler = filled_by(op) if op.name == "gather" else 0
    is_linear = filler is not None and (filler == 0 or bool(np.isnan(filler)))
    return LINEAR_IN.get(op.name) if is_linear else None


def is_broadcast(op: Op) -> bool:
    """Whether the result only repeats its operands, so that it is best made where it is read."""
    return op.name in SPREADING and not op.effects


def is_collective(op: Op) -> bool:
    """Whether other devices wait for this op; an asynchronous collective ends in `_start` and
    `_done`.
    """
    return _names_collective(op.name)


@remembered
def communicates(op: Op) -> bool:
    """Whether devices may wait for each other in the op or in anything inside it.

    Jaxprs in parameters are looked into.  What cannot be looked into may wait, where several
    devices run it.
    """
    unknown = _waits(op)
    return unknown is True or (unknown is None and is_manual(op))


def _waits(op: Op) -> bool | None:
    """Whether the op, with everything inside it, holds a collective; None if that is unknown."""
    found = [_params_wait(each.name, each.params) for each in op.walk() if not _is_structural(each)]
    return True if True in found else None if None in found else False


def _is_structural(op: Op) -> bool:
    return bool(op.regions) or op.is_terminator or op.name == UNDEFINED


def _params_wait(name: str, params: dict[str, Any]) -> bool | None:
    """`_waits` of an equation, which may hold jaxprs in its parameters."""
    if _names_collective(name):
        return True
    if name in LOCAL:
        return False
    inside = [
        _params_wait(eqn.primitive.name, eqn.params)
        for jaxpr in compat.inner_jaxprs(params)
        for eqn in compat.open_jaxpr(jaxpr).eqns
    ]
    if True in inside:
        return True
    return False if name in TRANSPARENT and None not in inside else None


def may_depend_on(predicate: Value, ops: Iterable[Op], at: Op) -> bool:
    """Whether a predicate may decide if ops run at the place of `at`: all devices have the same
    predicate, or no device waits for another one in the ops.
    """
    alone = not is_partly_manual(at) and not any(communicates(op) for op in ops)
    return alone or is_replicated(predicate, at)


@functools.cache
def _names_collective(name: str) -> bool:
    return name.removesuffix("_start").removesuffix("_done") in COLLECTIVE


def is_foreign(op: Op) -> bool:
    """Whether nothing is known of the op's primitive, as of one that is no part of JAX."""
    known = op.name in LOCAL or op.name in TRANSPARENT or _names_collective(op.name)
    return not (known or op.regions or op.is_terminator) and is_pure(op) and not _calls(op.name)


def _calls(name: str) -> bool:
    """Whether a primitive runs code that is not XLA's."""
    return name.endswith(("callback", "call"))


def is_pure(op: Op) -> bool:
    """Whether the op itself may be removed, duplicated or moved about in its region: no effects,
    nothing to stay next to.
    """
    return op.name not in _FIXED and not op.effects


def are_pure(ops: Iterable[Op]) -> bool:
    """Whether all of these ops are pure. What ends a region is not asked: it stays there."""
    return all(op.is_terminator or is_pure(op) for op in ops)


def may_skip_steps(loop: Scan) -> bool:
    """Whether steps of a loop may be left out: they have no effects. A barrier only says what is
    computed together.
    """
    return are_pure(op for op in loop.body.walk() if op.name != BARRIER)


def is_mergeable(op: Op) -> bool:
    """Whether one of two such ops on the same operands can stand for both."""
    return not op.regions and is_pure(op) and not is_collective(op)


def is_data_movement(op: Op) -> bool:
    """Whether the op computes nothing: its result consists of elements of its operands."""
    return op.name in MOVING and is_pure(op)


def rearranges(op: Op) -> bool:
    """Whether the result is a rearrangement of the operand's elements: XLA computes it where it is
    read, and hoists it out of no loop.
    """
    return op.name in REARRANGING and is_pure(op)


def is_cheap(op: Op) -> bool:
    """Whether repeating the op costs no more than reading its result: elementwise ops and data
    movement.
    """
    return (op.name in ELEMENTWISE or op.name in MOVING) and is_pure(op)


def is_large_constant(value: Value) -> bool:
    """Whether a captured array is too large to be in one function with a loop that reads it."""
    return isinstance(value, Constant) and value.nbytes > LARGEST_CONSTANT


def is_pointwise(op: Op) -> bool:
    """Whether an element of the result needs one element of each operand only, so that devices that
    divide the arrays need no communication.
    """
    pointwise = op.name in ELEMENTWISE or op.name in SPREADING or op.is_terminator
    return pointwise or isinstance(op, Cond)


def is_arithmetic(op: Op) -> bool:
    """Whether repeating the op costs nothing beside reading its operands: movement, basic
    arithmetic.
    """
    return is_cheap(op) and not is_transcendental(op)


def is_transcendental(op: Op) -> bool:
    """Whether an element of an elementwise op takes as long as moving ten."""
    if op.name in TRANSCENDENTAL_IF_COMPLEX:
        return bool(np.issubdtype(op.operands[0].dtype, np.complexfloating))
    return op.name in TRANSCENDENTAL


def same_in_vectors(op: Op) -> bool:
    """Whether the op gives each element of a vector the bits that it gives a scalar; for a
    transcendental function, of a vector whose length is a multiple of `VECTOR`.
    """
    return op.name in ELEMENTWISE and op.name not in ROUNDED_BY_PLACE and is_pure(op)


@remembered
def can_move(op: Op) -> bool:
    """Whether the op, with everything inside it, may run earlier or later, if under the same
    conditions and as often.
    """
    return not communicates(op) and are_pure(op.walk())


@remembered
def may_not_end(op: Op) -> bool:
    """Whether how long the op runs depends on its operands: it contains a `while`, perhaps in a
    jaxpr parameter.
    """
    return any(
        isinstance(each, While) or _names_while(each.params)
        for each in op.walk()
        if not _is_structural(each) or isinstance(each, While)
    )


def _names_while(params: dict[str, Any]) -> bool:
    return any(
        eqn.primitive.name == "while" or _names_while(eqn.params)
        for jaxpr in compat.inner_jaxprs(params)
        for eqn in compat.open_jaxpr(jaxpr).eqns
    )


@remembered
def is_repeatable(op: Op) -> bool:
    """Whether the op, with everything inside it, may run once more: it gives the same, has no
    effects, and no device waits for it.
    """
    return can_move(op) and (not is_divided(op) or all(is_pointwise(each) for each in op.walk()))


def is_plainly_called(remat: Remat) -> bool:
    """Whether XLA may see the ops of a checkpoint beside others: nothing differentiates any more,
    and either JAX has not differentiated it, or it is the only one in the step of a loop.
    """
    if phase_of(remat) != "final":
        return False
    step = remat.region
    if not is_in_transpose(remat) or step is None:
        return True
    is_alone = sum(isinstance(each, Remat) for each in step.ops) == 1
    return is_alone and isinstance(step.owner, Scan | While)


@remembered
def is_speculable(op: Op) -> bool:
    """Whether the op may run where it did not before: it is pure, ends, and neither communicates
    nor keeps a boundary.
    """
    return all(_is_total(each) for each in op.walk())


def _is_total(op: Op) -> bool:
    if op.regions:
        return not op.effects and not isinstance(op, Call | Remat | While)
    return op.is_terminator or (op.name in TOTAL and is_pure(op))


def dead_ops(region: Region) -> set[Op]:
    """The ops that compute nothing that is needed."""
    dead = set[Op]()
    for op in reversed(list(region.ops)):
        users = (user for value in op.results for user in value.users)
        if is_pure(op) and not (op.is_terminator or op.regions) and dead.issuperset(users):
            dead.add(op)
    return dead
