"""Run a program equation by equation: what "the same bits" means for a pass.

Every primitive is executed by itself and control flow is unrolled in Python, so that XLA can fuse
nothing across equations.  Two programs are the same if they give the same bits here, up to the sign
of zero.  Bodies that are opaque to the graph (`pallas_call`, a loop over refs) run compiled, as one
equation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Primitive

from jaxpr_opt.bridge import compat
from jaxpr_opt.bridge.parameters import callee_of
from jaxpr_opt.ir import exporter, traits
from jaxpr_opt.ir.graph import (
    UNDEFINED,
    Call,
    Cond,
    Constant,
    Graph,
    Op,
    Region,
    Remat,
    Scan,
    Value,
    While,
)
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.rewriter import Rewriter

MAX_STEPS = 10_000
"""Steps after which a `while` is taken to run forever."""

_PLAIN = (
    traits.ELEMENTWISE
    | traits.MOVING
    | traits.ARRANGING
    | traits.REDUCING
    | traits.CUMULATIVE
    | traits.SCATTERING
    | {"dot_general", "dynamic_update_slice", "gather"}
) - {UNDEFINED}

Environment = dict[Value | Op, Any]
"""Values, and of ops how they are bound."""


def evaluate_exactly(program: Graph | ClosedJaxpr, *args: Any) -> list[Any]:
    """The outputs of a program on flat arguments, no two equations fused."""
    graph = program if isinstance(program, Graph) else import_jaxpr(program, "final")
    return _region(graph.body, args, {})


def _region(region: Region, args: Sequence[Any], env: Environment) -> list[Any]:
    env.update(zip(region.params, args, strict=True))
    for op in region.ops:
        if op.name in _PLAIN:
            args = [_read(env, value) for value in op.operands]
            bind = env.get(op) or env.setdefault(op, _bound(op))
            env.update(zip(op.results, exporter.evaluate_op(op, args, bind), strict=True))
        elif not (op.is_terminator or (op.name == UNDEFINED and op.result in env)):
            with compat.bound_under(op.source.info, op.source.ctx):
                env.update(zip(op.results, _op(op, env), strict=True))
    return [_read(env, value) for value in region.outputs]


def _bound(op: Op) -> exporter.Bind:
    """How an equation is bound that depends on nothing around it, five times as fast."""
    # Told apart by what numbers look like, too: 0.0 equals -0.0, and 1 equals True.
    items = ((name, v, repr(v) if np.isscalar(v) else "") for name, v in op.params.items())
    try:
        compiled = _compiled(op.primitive, *items)
    except TypeError:  # a parameter that has no hash
        return compat.bind

    def bind(primitive: Primitive, args: Sequence[Any], _: dict[str, Any]) -> list[Any]:
        out = compiled(*args)
        return list(out) if primitive.multiple_results else [out]

    return bind


@functools.cache
def _compiled(primitive: Primitive, *params: tuple[str, Any, str]) -> Callable[..., Any]:
    """One equation as a function that XLA compiles, by itself."""

    def equation(*args: Any) -> Any:
        return primitive.bind(*args, **{name: value for name, value, _ in params})

    equation.__name__ = primitive.name  # as JAX calls it, so that it is compiled once
    return jax.jit(equation)


def _read(env: Environment, value: Value) -> Any:
    if isinstance(value, Constant) and value not in env:
        plain = isinstance(value.dtype, np.dtype) and value.dtype != jax.dtypes.float0
        as_array = jnp.asarray if value.shape else np.asarray  # to copy a number costs less
        env[value] = as_array(value.value, value.dtype) if plain else value.value
    return env[value]


def _op(op: Op, env: Environment) -> Sequence[Any]:
    args = [_read(env, value) for value in op.operands]
    match op:
        case Scan():
            return _scan(op, args, env)
        case While():
            return _while(op, args, env)
        case Cond():
            return _region(op.branches[op.taken(args[0])], (), env)
        case Remat():
            return _region(op.body, (), env)
        case Call() if op.name != "shard_map":
            return _region(op.body, args, {})
        case Call():
            return exporter.evaluate(by_itself(op), args, {})
        case _ if op.name in {"custom_jvp_call", "custom_vjp_call"}:
            return evaluate_exactly(callee_of(op), *args)
        case _:
            return exporter.evaluate_op(op, args)


def _scan(op: Scan, args: Sequence[Any], env: Environment) -> Sequence[Any]:
    n, length = op.num_carries, op.length
    carries, streams = list(args[:n]), [_rows(x) for x in args[n:]]
    stacks: list[list[Any]] = [[None] * length for _ in op.stacks]
    for step in reversed(range(length)) if op.reverse else range(length):
        out = _region(op.body, [*carries, *(rows[step] for rows in streams)], env)
        carries = out[:n]
        for stack, row in zip(stacks, out[n:], strict=True):
            stack[step] = row
    return [
        *carries,
        *(_stacked(rows, y.result) for rows, y in zip(stacks, op.stacks, strict=True)),
    ]


def _rows(stream: Any) -> Sequence[Any]:
    """Rows of an array; numpy takes it apart without a computation where it can."""
    plain = isinstance(stream.dtype, np.dtype)
    return list(np.asarray(stream)) if plain else [stream[i] for i in range(len(stream))]


def _stacked(rows: list[Any], result: Value) -> Any:
    if not isinstance(result.dtype, np.dtype):
        return jnp.stack(rows)
    if result.dtype == jax.dtypes.float0 or not rows:
        return np.zeros(result.shape, result.dtype)
    return jnp.asarray(np.stack([np.asarray(row) for row in rows]))


def _while(op: While, args: Sequence[Any], env: Environment) -> Sequence[Any]:
    carries = list(args)
    for _ in range(MAX_STEPS):
        (go_on,) = _region(op.predicate, carries, env)
        if not go_on:
            return carries
        carries = _region(op.body, carries, env)
    raise RuntimeError(f"a while loop did not end after {MAX_STEPS} steps")


def by_itself(op: Op) -> Region:
    """A region that is one op, its operands as parameters."""
    rw = Rewriter(Graph(Region()))
    region = rw.new_region(op.operands)
    copy = rw.copy(op, dict(zip(op.operands, region.params, strict=True)))
    rw.place(copy, before=region.terminator)
    rw.set_outputs(region, copy.results)
    return region
