"""The parameters of JAX's primitives, by names of our own.

JAX renames parameters and adds some: `num_carry` of a scan became `ft_in` in 0.11, `mul` has had an
`out_dtype` since 0.10. JAX's names are written here, in the importer and in `compat`, and nowhere
else. The importer calls `unknown` on every equation: one that lacks a parameter, or has an unknown
one, becomes an opaque op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jax.lax import GatherScatterMode, Precision

from jaxpr_opt.bridge.guard import UnknownJaxError


class Equation(Protocol):
    """What has the parameters of a primitive: an equation, or an op that was one."""

    @property
    def name(self) -> str:
        """Of the primitive."""

    @property
    def params(self) -> Mapping[str, Any]:
        """By JAX's names."""

    @property
    def operands(self) -> Sequence[Any]:
        """The operands that it reads."""


_SCATTER = "dimension_numbers indices_are_sorted mode unique_indices update_consts? update_jaxpr?"
_JIT = (
    "jaxpr in_shardings out_shardings in_layouts out_layouts inline donated_invars"
    " compiler_options_kvs ctx_mesh? keep_unused? name?"
)
CUSTOM_JVP = "custom_jvp_call"

_REMAT = "jaxpr policy prevent_cse differentiated?"

_TABLE = {
    "argmax": "axes index_dtype",
    "argmin": "axes index_dtype",
    "broadcast_in_dim": "broadcast_dimensions shape sharding?",
    "checkpoint": _REMAT,
    "concatenate": "dimension",
    "cond": "branches branches_platforms?",
    "conv_general_dilated": "dimension_numbers feature_group_count batch_group_count padding"
    " lhs_dilation rhs_dilation window_strides precision? preferred_element_type? out_sharding?",
    "convert_element_type": "new_dtype weak_type sharding?",
    "cumsum": "axis reverse",
    CUSTOM_JVP: "call_jaxpr jvp_jaxpr_fun num_consts symbolic_zeros",
    "custom_linear_solve": "const_lengths jaxprs",
    "dot_general": "dimension_numbers precision? preferred_element_type? out_sharding?",
    "dynamic_slice": "slice_sizes",
    "dynamic_update_slice": "",
    "gather": "dimension_numbers fill_value indices_are_sorted mode slice_sizes unique_indices",
    "integer_pow": "y",
    "iota": "dimension dtype shape sharding?",
    "jit": _JIT,
    "name": "name",
    "pad": "padding_config",
    "reduce_and": "axes out_sharding?",
    "reduce_max": "axes out_sharding?",
    "reduce_min": "axes out_sharding?",
    "reduce_or": "axes out_sharding?",
    "reduce_precision": "exponent_bits mantissa_bits",
    "reduce_prod": "axes out_sharding?",
    "reduce_sum": "axes out_sharding?",
    "remat": _REMAT,
    "remat2": _REMAT,
    "reshape": "dimensions new_sizes sharding?",
    "rev": "dimensions",
    "scan": "jaxpr length reverse unroll num_carry? num_consts? linear? ft_in? ft_out?"
    " _split_transpose?",
    "scatter": _SCATTER,
    "scatter-add": _SCATTER,
    "scatter-max": _SCATTER,
    "scatter-min": _SCATTER,
    "scatter-mul": _SCATTER,
    "scatter-sub": _SCATTER,
    "shard_map": "check_vma in_specs jaxpr mesh newly_manual_axes out_specs",
    "small_loop": "jaxpr",
    "slice": "limit_indices start_indices strides",
    "sort": "dimension is_stable num_keys",
    "split": "axis sizes",
    "squeeze": "dimensions",
    "stack": "axis",
    "transpose": "permutation",
    "unstack": "axis",
    "while": "body_jaxpr body_nconsts cond_jaxpr cond_nconsts",
}
"""What the parameters of a primitive are called; with a question mark, those that are not there on
every version of JAX, or do not matter."""

_REQUIRED = {
    kind: frozenset(name for name in names.split() if not name.endswith("?"))
    for kind, names in _TABLE.items()
}
_KNOWN = {kind: frozenset(names.replace("?", "").split()) for kind, names in _TABLE.items()}


def unknown(kind: str, params: Mapping[str, Any]) -> str | None:
    """What of an equation's parameters nobody here knows, in words; None if all is as it should be.

    A parameter that is new, but off, says nothing.
    """
    required = _REQUIRED.get(kind)
    if required is None or (params.keys() == _KNOWN[kind]):
        return None
    if missing := sorted(required.difference(params)):
        return f"{kind} has no parameter {missing[0]!r}"
    added = (name for name in params if name not in _KNOWN[kind] and not _is_off(params[name]))
    new = next(added, None)
    return None if new is None else f"{kind} has a new parameter {new!r}"


def is_platform_choice(params: Mapping[str, Any]) -> bool:
    """Whether an equation has one branch for each platform: only one of them is compiled."""
    return params.get("branches_platforms") is not None


def branch_of_xla(params: Mapping[str, Any]) -> Any:
    """The branch that such an equation takes wherever XLA compiles it: the other ones are for what
    compiles Pallas kernels, as in `jnp.diag`. None if platforms have branches of their own.
    """
    for platforms, branch in zip(params["branches_platforms"], params["branches"], strict=True):
        if platforms is None:
            return branch
        if not {"mosaic"}.issuperset(platforms):
            return None
    return None


def _is_off(value: Any) -> bool:
    return value is None or value is False or value == ()


def _read(op: Equation, name: str) -> Any:
    try:
        return op.params[name]
    except KeyError:
        raise UnknownJaxError(f"{op.name} has no parameter {name!r}") from None


# ---------------------------------------------------------------- where things are


def has_numbers(op: Equation) -> bool:
    """Whether it is a gather or a scatter, which have dimension numbers, or a product."""
    return "dimension_numbers" in op.params


def numbers_of(op: Equation) -> Any:
    """The dimension numbers of a gather, a scatter, a product or a convolution."""
    return _read(op, "dimension_numbers")


def along_other_axes(product: Equation, numbers: Any) -> dict[str, Any]:
    """The parameters of a product that multiplies and sums along other axes."""
    return {**product.params, "dimension_numbers": numbers}


def swapped(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a product of the same factors, the second one first."""
    numbers, precision = params["dimension_numbers"], params.get("precision")
    both = {"dimension_numbers": tuple(tuple(reversed(pair)) for pair in numbers)}
    if isinstance(precision, tuple):
        both["precision"] = tuple(reversed(precision))
    return {**params, **both}


def groups_of(convolution: Equation) -> tuple[int, int]:
    """In how many groups a convolution takes its features, and its batch."""
    names = "feature_group_count", "batch_group_count"
    features, batch = (int(_read(convolution, name)) for name in names)
    return features, batch


def in_one_group(convolution: Equation) -> dict[str, Any]:
    """The parameters of a convolution that takes all features and all rows of its batch."""
    return {**convolution.params, "feature_group_count": 1, "batch_group_count": 1}


def asks_for_all_bits(product: Equation) -> bool:
    """Whether a product asks to be computed with all bits of its factors."""
    precision = product.params.get("precision")
    return isinstance(precision, tuple) and set(precision) == {Precision.HIGHEST}


def mode_of(op: Equation) -> Any:
    """What a gather or scatter does with indices out of range; None of other ops, which clamp."""
    return op.params.get("mode")


def fill_value_of(op: Equation) -> Any:
    """The number that a gather gives for indices out of range; None for JAX's default."""
    return _read(op, "fill_value")


def fills(gather: Equation) -> bool:
    """Whether a gather gives a number for indices out of range, not an element of the array."""
    return bool(mode_of(gather) == GatherScatterMode.FILL_OR_DROP)


def filled_by(gather: Equation) -> Any:
    """The number that a gather gives for indices out of range; zero if that is an element of the
    array.
    """
    return fill_value_of(gather) if fills(gather) else 0


def has_unique_indices(op: Equation) -> bool:
    """Whether a gather or scatter was promised that no two windows meet."""
    return bool(_read(op, "unique_indices"))


def alike_in_both(scatter: Equation) -> dict[str, Any]:
    """The parameters that a gather and a scatter have in common, as arguments of either."""
    names = ("indices_are_sorted", "unique_indices", "mode")
    return {name: _read(scatter, name) for name in names}


def unsorted(op: Equation) -> dict[str, Any]:
    """The parameters of a gather or scatter at indices that are in any order."""
    return {**op.params, "indices_are_sorted": False}


def unique(op: Equation) -> dict[str, Any]:
    """The parameters of a gather or scatter of which no two windows meet."""
    return {**op.params, "unique_indices": True}


def combiner_of(op: Equation) -> Any:
    """The function that a scatter combines old and new elements by; None if it writes."""
    return op.params.get("update_jaxpr")


def slice_sizes_of(op: Equation) -> tuple[int, ...]:
    """The sizes of the window that a gather or a dynamic slice reads."""
    return tuple(_read(op, "slice_sizes"))


def starts_of(op: Equation) -> tuple[int, ...]:
    """Where a slice starts."""
    return tuple(_read(op, "start_indices"))


def limits_of(op: Equation) -> tuple[int, ...]:
    """Where a slice ends."""
    return tuple(_read(op, "limit_indices"))


def strides_of(op: Equation) -> tuple[int, ...]:
    """The strides of a slice."""
    return tuple(_read(op, "strides") or (1,) * len(op.operands[0].shape))


# ---------------------------------------------------------------- dimensions


def permutation_of(op: Equation) -> tuple[int, ...]:
    """Which dimension of its operand each dimension of a transpose is."""
    return tuple(_read(op, "permutation"))


def dimension_of(op: Equation) -> int:
    """The one dimension that a concatenate, stack, split, sort or iota is along."""
    return int(op.params["dimension"] if "dimension" in op.params else _read(op, "axis"))


def dimensions_of(op: Equation) -> tuple[int, ...]:
    """The dimensions that are squeezed, or reversed."""
    return tuple(_read(op, "dimensions"))


def is_in_order(op: Equation) -> bool:
    """Whether a reshape reads its operand in row-major order."""
    return _read(op, "dimensions") is None


def repetitions_of(op: Equation) -> tuple[int, ...]:
    """How often a `tile` repeats its operand along each axis."""
    return tuple(_read(op, "reps"))


def keys_of(op: Equation) -> int:
    """By how many of its operands a sort compares."""
    return int(_read(op, "num_keys"))


def broadcast_dimensions_of(op: Equation) -> tuple[int, ...]:
    """Which dimension of a broadcast each dimension of its operand is."""
    return tuple(_read(op, "broadcast_dimensions"))


def is_resharded(op: Equation) -> bool:
    """Whether a broadcast, reshape or product says how its result is sharded."""
    return any(op.params.get(name) is not None for name in ("sharding", "out_sharding"))


_SIZES = {
    "broadcast_in_dim": "shape",
    "gather": "slice_sizes",
    "reshape": "new_sizes",
    "slice": "limit_indices",
}
_OF_RESULT = frozenset({"broadcast_in_dim", "reshape"})
"""Ops that say the sizes of the result, not those of what they read."""


def of_one_row(op: Equation, axis: int | None, to: int) -> dict[str, Any]:
    """The parameters of an op that makes rows along one axis of rows along another, for one row.

    No axis: the op reads all of its first operand for each row.
    """
    at = to if op.name in _OF_RESULT else axis
    return of_single_rows(op, () if at is None else (at,))


def of_single_rows(op: Equation, axes: Sequence[int]) -> dict[str, Any]:
    """The parameters of an op, if what its sizes are those of has one row along some axes."""
    name = _SIZES.get(op.name)
    if name is None:
        return dict(op.params)
    sizes = [1 if axis in axes else n for axis, n in enumerate(_read(op, name))]
    return {**op.params, name: tuple(sizes)}


def of_shape(op: Equation, shape: Sequence[int]) -> dict[str, Any]:
    """The parameters of an op whose result has another shape."""
    name = _SIZES.get(op.name)
    if name is None or not (op.name in _OF_RESULT or op.name == "gather"):
        return dict(op.params)
    if op.name == "gather":
        numbers, sizes = numbers_of(op), list(slice_sizes_of(op))
        gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
        kept = (axis for axis in range(len(sizes)) if axis not in gone)
        for axis, to in zip(kept, numbers.offset_dims, strict=True):
            sizes[axis] = shape[to]
        shape = sizes
    return {**op.params, name: tuple(shape)}


def axes_of(op: Equation) -> tuple[int, ...]:
    """The axes that are reduced."""
    return tuple(_read(op, "axes"))


def sizes_of(op: Equation) -> tuple[int, ...]:
    """The sizes of the parts of a split."""
    return tuple(_read(op, "sizes"))


def padding_of(op: Equation) -> Sequence[tuple[int, int, int]]:
    """The number of elements that a pad puts before, after and between those of each dimension."""
    return tuple(_read(op, "padding_config"))


def window_padding_of(op: Equation) -> Sequence[tuple[int, int]]:
    """The number of elements before and after those of each dimension that is read by windows."""
    return tuple(_read(op, "padding"))


def window_dimensions_of(op: Equation) -> tuple[int, ...]:
    """The sizes of the window that is reduced."""
    return tuple(_read(op, "window_dimensions"))


# ---------------------------------------------------------------- loops, calls, the rest


SMALL_LOOP = "small_loop"
"""The primitive that a loop becomes which XLA is to compile as one function."""


def length_of(scan: Equation) -> int:
    """How many steps a scan takes; where that is a symbol, JAX raises what it has for these."""
    return int(_read(scan, "length"))


def has_length(scan: Equation) -> bool:
    """Whether the number of steps is a number, and no symbol (`jax.export`)."""
    return isinstance(_read(scan, "length"), int)


def reverse_of(scan: Equation) -> bool:
    """Whether a scan runs backwards."""
    return bool(_read(scan, "reverse"))


def unroll_of(scan: Equation) -> Any:
    """How many steps of a scan were asked to be one."""
    return _read(scan, "unroll")


def first_right_side_of(solve: Equation) -> int:
    """The place of the first right side among the operands of a `custom_linear_solve`."""
    return sum(_read(solve, "const_lengths"))


def callee_of(op: Equation) -> Any:
    """The jaxpr of a call that is kept, of custom derivatives for one; None if it is no call."""
    return op.params.get("call_jaxpr")


def has_plain_rule(call: Any) -> bool:
    """Whether the rule of a call of a custom derivative is of its operands only, and is told no
    zeros.
    """
    return not call.params["num_consts"] and not call.params["symbolic_zeros"]


def jaxpr_of_jit(call: Any) -> Any:
    """What a `jit` calls."""
    return call.params["jaxpr"]


def mesh_of(op: Equation) -> Any:
    """The mesh of a `shard_map`; None of other ops."""
    return op.params.get("mesh")


def shard_map_options(op: Equation) -> dict[str, Any]:
    """The options of `jax.shard_map` that make this one again."""
    return {
        "mesh": _read(op, "mesh"),
        "in_specs": tuple(_read(op, "in_specs")),
        "out_specs": tuple(_read(op, "out_specs")),
        "check_vma": _read(op, "check_vma"),
        "axis_names": _read(op, "newly_manual_axes"),
    }


def newly_manual_axes_of(shard_map: Equation) -> frozenset[str]:
    """The axes of the mesh that a `shard_map` makes manual."""
    return frozenset(_read(shard_map, "newly_manual_axes"))


def checks_vma(shard_map: Equation) -> bool:
    """Whether a `shard_map` tracks what varies over its axes."""
    return bool(_read(shard_map, "check_vma"))


def policy_of(remat: Equation) -> Any:
    """The policy by which a checkpoint saves values; None if it saves none."""
    return _read(remat, "policy")


def is_in_transpose(remat: Equation) -> bool:
    """Whether JAX has made a checkpoint by transposing: it computes again, and reads cotangents."""
    return bool(_read(remat, "differentiated"))


def with_one_cse_flag(remat: Equation) -> dict[str, Any]:
    """The parameters of a checkpoint without operands: JAX may have had a flag for each."""
    flags = _read(remat, "prevent_cse")
    return {**remat.params, "prevent_cse": any(flags) if isinstance(flags, tuple) else flags}


def label_of(name: Equation) -> str:
    """The argument of `checkpoint_name`."""
    return str(_read(name, "name"))


def exponent_of(op: Equation) -> int:
    """The exponent of an integer power."""
    return int(_read(op, "y"))


def weak_type_of(conversion: Equation) -> bool:
    """Whether the result of a conversion is weakly typed."""
    return bool(_read(conversion, "weak_type"))
