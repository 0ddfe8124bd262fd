"""Convolutions of a batch, which `vmap` makes in groups, by one kernel, or for one."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax

from jaxpr_opt.bridge.parameters import groups_of, in_one_group, numbers_of
from jaxpr_opt.builders.batches.shared_factors import one_row
from jaxpr_opt.builders.same_op import bound
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def convolution_of_shared(op: Op, rw: Rewriter) -> Value:
    """A convolution in groups, if the kernel consists of a copy for each: what each group takes is
    then more rows of the batch.
    """
    rows, _ = groups_of(op)
    (batch, features, *_), (made, _, *_), (out_batch, out_features, *_) = numbers_of(op)
    kernels = rw.insert(lambda x: split(x, made, rows), op.operands[1], before=op)
    kept = [axis for axis in range(len(kernels.shape)) if axis != made]
    kernel = one_row(kernels, kept, rw, before=op)

    def code(x: jax.Array, kernel: jax.Array) -> jax.Array:
        x = merged(split(x, features, rows), features, batch)
        y = bound(op, x, kernel, params=in_one_group(op))
        return merged(split(y, out_batch, rows), out_batch, out_features)

    return rw.typed(code, op.result.aval, op.operands[0], kernel, before=op)


def sum_of_groups(op: Op, x: jax.Array, y: jax.Array, dtype: Any) -> jax.Array:
    """The sum of what a convolution makes in groups, of operands that have an axis for these where
    `group_axes` says.
    """
    (_, features, *_), (_, taken, *_), _ = numbers_of(op)
    of_x, of_y = group_axes(op)
    params = {**in_one_group(op), "preferred_element_type": np.dtype(dtype)}
    made: jax.Array = bound(op, merged(x, of_x, features), merged(y, of_y, taken), params=params)
    return made


def group_axes(op: Op) -> tuple[int, int]:
    """The axis of each operand of a convolution that its groups divide."""
    (batch, features, *_), (made, *_), _ = numbers_of(op)
    in_features, _ = groups_of(op)
    return (features if in_features > 1 else batch), made


def split(x: jax.Array, axis: int, parts: int) -> jax.Array:
    """An array with an axis for so many parts of an axis, before it."""
    shape = [*x.shape]
    shape[axis : axis + 1] = parts, x.shape[axis] // parts
    return lax.reshape(x, shape)


def merged(x: jax.Array, axis: int, to: int) -> jax.Array:
    """An array without an axis: its rows are the parts of another one, as that is numbered then."""
    order = [other for other in range(x.ndim) if other != axis]
    shape = [x.shape[other] for other in order]
    shape[to] *= x.shape[axis]
    order.insert(to, axis)
    return lax.reshape(lax.transpose(x, order), shape)
