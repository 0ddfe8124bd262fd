"""Values of a loop that are the same in every step, and how each is made once, before the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from jax import lax
from jax.extend.core.primitives import broadcast_in_dim_p

from jaxpr_opt.analysis.values.constants import identity, is_undefined
from jaxpr_opt.bridge.parameters import broadcast_dimensions_of
from jaxpr_opt.ir.devices import is_divided
from jaxpr_opt.ir.graph import UNDEFINED, Op, Scan, Stack, Stream, Value, While
from jaxpr_opt.ir.rewriter import Rewriter

Maker = Callable[[Rewriter], Value]
"""Makes a value before the loop, or tells which it is."""


Repetition = tuple[Value, Maker]


def repeated(loop: Scan | While) -> Iterator[Repetition]:
    """Parameters and results of a loop that are the same in every step, if anything reads them."""
    for carry, *params in zip(
        loop.carries, *(region.params for region in loop.regions), strict=False
    ):
        # Condition 3 of hoist-invariant-residuals.
        if carry.next is carry.param or identity(carry.next) == identity(carry.init):
            yield from ((v, _just(carry.init)) for v in (*params, carry.result))
    if isinstance(loop, Scan):
        for stream in loop.streams:
            row = _row(stream, loop)
            if row is not None:
                yield stream.param, row
        for stack in loop.stacks:
            whole = _whole(stack, loop)
            if whole is not None:
                yield stack.result, whole


def _just(value: Value) -> Maker:
    return lambda rw: value  # noqa: ARG005


def _row(stream: Stream, scan: Scan) -> Maker | None:
    """The outer value that the stream is at every step, if it is one (condition 2)."""
    op, aval = stream.operand.op, stream.param.aval
    if op is None:
        return None
    if op.name == UNDEFINED:
        return lambda rw: rw.place(Op(UNDEFINED, (), [aval]), scan).result
    # Condition 2 of hoist-invariant-residuals.
    if op.name != "broadcast_in_dim" or 0 in broadcast_dimensions_of(op):
        return None
    (source,) = op.operands
    if source.aval == aval:
        return _just(source)
    dimensions = [d - 1 for d in broadcast_dimensions_of(op)]
    return lambda rw: _broadcast(rw, source, aval, dimensions, scan)


def _whole(stack: Stack, scan: Scan) -> Maker | None:
    """The stack, if it is known without running the loop (condition 1)."""
    value, aval = stack.value, stack.result.aval
    # Condition 1 of hoist-invariant-residuals.
    if is_undefined(value):
        return lambda rw: rw.place(Op(UNDEFINED, (), [aval]), scan).result
    stream = scan.stream_of(value)
    # Condition 1 of hoist-invariant-residuals.
    if stream is not None:  # of rows that are divided XLA has gathered those that are stacked
        return None if is_divided(scan) else _just(stream.operand)
    # Condition 1 of hoist-invariant-residuals.
    if scan.body.defines(value):
        return None
    dimensions = range(1, len(aval.shape))
    return lambda rw: _broadcast(rw, value, aval, dimensions, scan)


def _broadcast(
    rw: Rewriter, value: Value, aval: Any, dimensions: Iterable[int], before: Op
) -> Value:
    """The value spread out to type `aval`, before an op."""
    mesh, where = aval.sharding.mesh, tuple(dimensions)
    if not mesh.empty:
        spread = partial(
            lax.broadcast_in_dim,
            shape=aval.shape,
            broadcast_dimensions=where,
            out_sharding=aval.sharding,
        )
        return rw.insert(spread, value, before=before)
    params = {"shape": aval.shape, "broadcast_dimensions": where, "sharding": None}
    made = Op(
        "broadcast_in_dim",
        [value],
        [aval],
        primitive=broadcast_in_dim_p,
        params=params,
        source=before.source,
    )
    return rw.place(made, before).result
