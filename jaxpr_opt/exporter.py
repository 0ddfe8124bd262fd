"""Graph -> jaxpr, by letting JAX trace it again.

Nothing here writes the parameters of a control-flow primitive: loops and branches are re-made by
calling `lax.scan`, `lax.cond`, `lax.switch` and `lax.while_loop` on functions that evaluate a
region, which closes over outer values as any user's function would.  First-order equations are
bound as they were, under their own source info and equation context, so names, metadata, compute
type and mesh survive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr

from jaxpr_opt import compat
from jaxpr_opt.ir import (
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
from jaxpr_opt.parameters import shard_map_options

Environment = dict[Value, Any]
Rule = Callable[[Any, Environment], Sequence[Any]]


def export(graph: Graph) -> ClosedJaxpr:
    """The jaxpr of a graph: same inputs, same outputs, one that JAX's checker accepts."""

    def program(*args: Any) -> list[Any]:
        return evaluate(graph.body, args, {})

    return compat.trace(program, [v.aval for v in graph.inputs], graph.debug_info)


def evaluate(region: Region, args: Sequence[Any], env: Environment) -> list[Any]:
    """Run a region on JAX values, eagerly or under any trace; outer values are looked up in
    `env`.
    """
    env.update(zip(region.params, args, strict=True))
    _run(region.ops, env)
    return [_read(env, v) for v in region.outputs]


def evaluate_ops(ops: Iterable[Op], output: Value, env: Environment) -> Any:
    """Run a straight line of ops on JAX values; what they read from elsewhere is in `env`."""
    _run(ops, env)
    return _read(env, output)


def _run(ops: Iterable[Op], env: Environment) -> None:
    for op in ops:
        if op.is_terminator:
            break
        with compat.bound_under(op.source.info, op.source.ctx):
            rule: Rule = _RULES.get(type(op), _first_order)
            results = rule(op, env)
        env.update(zip(op.results, results, strict=True))


def _read(env: Environment, value: Value) -> Any:
    if isinstance(value, Constant) and value not in env:
        return value.value
    return env[value]


def _first_order(op: Op, env: Environment) -> list[Any]:
    if op.name == UNDEFINED:
        return [compat.undefined(op.result.aval)]
    assert op.primitive is not None
    return compat.bind(op.primitive, [_read(env, v) for v in op.operands], op.params)


def _closure(region: Region, env: Environment) -> Callable[..., list[Any]]:
    """A region as the function of its parameters; a copy of `env` keeps traces apart."""
    return lambda *args: evaluate(region, args, dict(env))


def _scan(op: Scan, env: Environment) -> Sequence[Any]:
    body = _closure(op.body, env)
    n = op.num_carries

    def step(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        out = body(*carry, *xs)
        return out[:n], out[n:]

    operands = [_read(env, v) for v in op.operands]
    carry, stacked = lax.scan(step, operands[:n], operands[n:], **op.params)
    return [*carry, *stacked]


def _while(op: While, env: Environment) -> Sequence[Any]:
    predicate, body = _closure(op.predicate, env), _closure(op.body, env)
    init = [_read(env, v) for v in op.operands]
    return lax.while_loop(lambda c: predicate(*c)[0], lambda c: body(*c), init)


def _cond(op: Cond, env: Environment) -> Sequence[Any]:
    branches = [_closure(region, env) for region in op.branches]
    selector = _read(env, op.selector)
    if len(branches) == 2:
        return list(lax.cond(selector, branches[1], branches[0]))
    return list(lax.switch(selector, branches))


def _remat(op: Remat, env: Environment) -> Sequence[Any]:
    # The body becomes an open jaxpr, so array constants travel as operands too.
    constants = {
        v: None
        for each in op.body.walk()
        for v in each.operands
        if isinstance(v, Constant) and (v.shape or isinstance(v.value, jax.Array))
    }
    captured = [*op.body.captures(), *constants]
    jaxpr = compat.trace(
        lambda *args: evaluate(op.body, (), dict(zip(captured, args, strict=True))),
        [v.aval for v in captured],
    )
    assert op.primitive is not None
    return compat.bind(
        op.primitive,
        [_read(env, v) for v in captured],
        {**op.params, "jaxpr": compat.opened(jaxpr)},
    )


def _call(op: Call, env: Environment) -> Sequence[Any]:
    args = [_read(env, v) for v in op.operands]
    if op.name == "shard_map":
        mapped: Callable[..., Any] = jax.shard_map(
            lambda *xs: tuple(evaluate(op.body, xs, {})), **shard_map_options(op)
        )
        return list(mapped(*args))
    jaxpr = compat.trace(lambda *xs: evaluate(op.body, xs, {}), [v.aval for v in op.body.params])
    assert op.primitive is not None
    return compat.bind(op.primitive, args, {**op.params, "jaxpr": jaxpr})


_RULES: dict[type[Op], Rule] = {
    Scan: _scan,
    While: _while,
    Cond: _cond,
    Remat: _remat,
    Call: _call,
}
