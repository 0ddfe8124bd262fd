"""Reads and writes of windows of arrays on their way."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from fuzz.mutations.places import is_plain, ops, visible
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Graph, Value
from jaxpr_opt.ir.rewriter import Rewriter


def touch(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Write to an array at an index, or read of it, on its way."""
    for op in ops(graph, rng):
        arrays = [
            i for i, v in enumerate(op.operands)
            if is_plain(v) and v.shape and v.shape[0] > 1 and not is_sharded(v)
        ]  # fmt: skip
        scalars = [
            v for v in visible(op)
            if is_plain(v) and v.shape == () and jnp.issubdtype(v.dtype, jnp.integer)
        ]  # fmt: skip
        if not arrays:
            continue
        index = rng.choice(arrays)
        value = op.operands[index]
        if scalars and rng.random() < 0.8:
            at = rng.choice(scalars)
        else:
            at = rw.scalar(rng.choice((0, 1, -1, 2, 100)), np.int32)
        new = rw.typed(_write(value, rng), value.aval, value, at, before=op)
        if new.aval == value.aval:
            rw.set_operand(op, index, new)
            return True
    return False


def _write(value: Value, rng: random.Random) -> Callable[[Any, Any], Any]:
    how = rng.choice(["set", "add", "mul", "min", "max", "slice", "mask", "swap"])
    mode = rng.choice(["drop", "clip", "fill", None])
    is_bool = value.dtype == np.bool_

    def write(x: Any, i: Any) -> Any:
        row = jnp.roll(x, 1, 0)[0]
        match how:
            case "slice":
                return lax.dynamic_update_slice_in_dim(x, row[None], i, 0)
            case "mask":
                mask = jnp.arange(len(x)).reshape(-1, *[1] * (x.ndim - 1)) == i
                return jnp.where(mask, row, x)
            case "swap":
                return x.at[i].set(x[i + 1])
            case _:
                name = "set" if is_bool else "multiply" if how == "mul" else how
                return getattr(x.at[i], name)(row, mode=mode if mode != "fill" else "drop")

    return write
