"""Graph -> jaxpr, by letting JAX trace it again.

Nothing here writes the parameters of a control-flow primitive: loops and branches are re-made by
calling `lax.scan`, `lax.cond`, `lax.switch` and `lax.while_loop` on functions that evaluate a
region, which closes over outer values as any user's function would.  First-order equations are
bound as they were, under their own source info and equation context, so names, metadata, compute
type and mesh survive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import compress
from operator import not_
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr

from jaxpr_opt.bridge import compat, compat_lowering, compat_types, dtypes
from jaxpr_opt.bridge.parameters import (
    dimension_of,
    shard_map_options,
)
from jaxpr_opt.bridge.slicing import stacked
from jaxpr_opt.ir import checkpointed
from jaxpr_opt.ir.dataflow import inputs
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
    is_sized,
)
from jaxpr_opt.ir.traits import dead_ops, is_large_constant
from jaxpr_opt.ir.unrolling import steps_as_one

Environment = dict[Value, Any]
Rule = Callable[[Any, Environment], Sequence[Any]]
Bind = Callable[[Any, Sequence[Any], dict[str, Any]], list[Any]]


def export(graph: Graph, out_avals: Sequence[Any] | None = None) -> ClosedJaxpr:
    """The jaxpr of a graph: same inputs, same outputs, one that JAX's checker accepts.

    `out_avals`: the types of the outputs, if not those of the values that stand for them now.
    """
    types = [v.aval for v in graph.outputs] if out_avals is None else out_avals

    def program(*args: Any) -> list[Any]:
        return _as_typed(evaluate(graph.body, args, {}), types)

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


def evaluate_op(op: Op, operands: Sequence[Any], bind: Bind | None = None) -> list[Any]:
    """Run an op without regions on JAX values, bound by `compat.bind`, or by another."""
    if op.name == UNDEFINED:
        return [compat_types.undefined(op.result.aval)]
    assert op.primitive is not None
    if op.name == "stack" and compat_types.may_be_on_mesh():
        return [stacked(operands, dimension_of(op))]
    given = _beside(op, _with_wide_starts(op, operands))
    return (bind or compat.bind)(op.primitive, given, op.params)


def _run(ops: Iterable[Op], env: Environment) -> None:
    for op in ops:
        if op.is_terminator:
            break
        with compat.bound_under(op.source.info, op.source.ctx):
            rule: Rule = _RULES.get(type(op), _first_order)
            results = rule(op, env)
        env.update(zip(op.results, results, strict=True))


def _as_typed(values: Sequence[Any], avals: Sequence[Any]) -> list[Any]:
    """Values with these weak types: one that stands for another may have another."""
    return [
        v if _is_weak(compat_types.aval_of(v)) == _is_weak(aval) else compat_types.weaken(v, aval)
        for v, aval in zip(values, avals, strict=True)
    ]


def _is_weak(aval: Any) -> bool:
    return getattr(aval, "weak_type", False)


def _read(env: Environment, value: Value) -> Any:
    if isinstance(value, Constant) and value not in env:
        return value.value
    return env[value]


def _first_order(op: Op, env: Environment) -> list[Any]:
    return (_apart if op.alone else evaluate_op)(op, [_read(env, v) for v in op.operands])


def _apart(op: Op, operands: Sequence[Any]) -> list[Any]:
    """A write that XLA does not fuse with its readers.  A function of its own reads all arguments:
    not where a window starts along an axis that it fills.
    """
    # Condition 3 of write-apart.
    filled = set[int]()
    if op.name in _STARTS:
        sizes = zip(op.operands[0].shape, op.operands[1].shape, strict=True)
        first = _STARTS[op.name]
        filled = {first + axis for axis, (all_, written) in enumerate(sizes) if all_ == written}
    read = [number for number in range(len(operands)) if number not in filled]

    def run(*args: Any) -> list[Any]:
        starts = {number: np.zeros((), op.operands[number].dtype) for number in filled}
        known = starts | dict(zip(read, args, strict=True))
        return evaluate_op(op, [known[number] for number in range(len(operands))])

    return compat_lowering.apart(run, [operands[number] for number in read])


def _beside(op: Op, operands: Sequence[Any]) -> Sequence[Any]:
    """The operands; what is written into a slice where the array is."""
    if op.name != "dynamic_update_slice":
        return operands
    array, value, *starts = operands
    return array, compat_types.beside(array, value), *starts


_STARTS = {"dynamic_slice": 1, "dynamic_update_slice": 2}
"""The first operand that says where a window starts."""


def _with_wide_starts(op: Op, operands: Sequence[Any]) -> Sequence[Any]:
    """The operands; starts of a window in a type that holds the sizes of the array.

    XLA clamps a start in its own type, in some fusions: a limit of 299 is 43 as a uint8.
    """
    at = _STARTS.get(op.name)
    if at is None or len(operands) == at or not is_sized(op.operands[0].shape):
        return operands
    if dtypes.holds(op.operands[at].dtype, max(op.operands[0].shape)):
        return operands
    return [*operands[:at], *(lax.convert_element_type(x, np.int32) for x in operands[at:])]


def _closure(region: Region, env: Environment, avals: Sequence[Any]) -> Callable[..., list[Any]]:
    """A region as the function of its parameters that yields these types; a copy of `env` keeps
    traces apart.
    """
    return lambda *args: _as_typed(evaluate(region, args, dict(env)), avals)


def _loop(op: Scan | While, env: Environment) -> Sequence[Any]:
    rule: Rule = _scan if isinstance(op, Scan) else _while
    return _in_one_function(rule, op, env) if op.alone else rule(op, env)


def _in_one_function(rule: Rule, op: Scan | While, env: Environment) -> Sequence[Any]:
    """A loop that XLA compiles as one function, which hands back all that it reads, but for what
    each step reads and overwrites: XLA ends the process where it finds that nothing reads an
    argument.  What it hands back of a transposed array is read from then on.
    """
    # Condition 3 of compile-small-loops.
    regions = [op.body, *(region for each in op.body.walk() for region in each.regions)]
    dead = set[Op]().union(*map(dead_ops, regions))
    unread = {c.init for c in op.carries if dead.issuperset(c.param.users)}
    overwritten = {c.init for c in op.carries} - unread
    large = (v for each in op.walk() for v in each.operands if is_large_constant(v))
    given = (v for v in inputs(op) if not isinstance(v, Constant))
    read = list(dict.fromkeys((*given, *large)))

    kept = [v for v in read if v not in overwritten]

    def run(*args: Any) -> list[Any]:
        inside = dict(zip(read, args, strict=True))
        return [*rule(op, inside), *(inside[v] for v in kept)]

    operands = [_read(env, v) for v in read]
    made = compat_lowering.in_one_function(run, operands)
    results, back = made[: len(op.results)], made[len(op.results) :]
    env.update((v, x) for v, x in zip(kept, back, strict=True) if _is_transposed(v))
    return results


def _is_transposed(value: Value) -> bool:
    """Whether XLA would transpose an array for the function, and once more for what comes later,
    unless that reads what the function hands back.
    """
    return value.op is not None and value.op.name == "transpose"


def _scan(op: Scan, env: Environment) -> Sequence[Any]:
    n = op.num_carries
    params = [p.aval for p in op.body.params[:n]]
    body = _closure(op.body, env, [*params, *(y.result.aval for y in op.stacks)])

    def step(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        out = body(*carry, *xs)
        return out[:n], out[n:]

    operands = [_read(env, v) for v in op.operands]
    inits, streams = _as_typed(operands[:n], params), operands[n:]
    # A symbolic length must follow from what is streamed.
    settings = {**op.params, "unroll": steps_as_one(op)}
    settings["length"] = None if streams else op.params["length"]
    carry, stacked = lax.scan(step, inits, streams, **settings)
    return [*carry, *stacked]


def _while(op: While, env: Environment) -> Sequence[Any]:
    avals = [p.aval for p in op.body.params]
    init = _as_typed([_read(env, v) for v in op.operands], avals)
    if op.rows is not None:
        return _checkpointed(op, env, init, op.rows)
    if op.alone:  # XLA does not know that it takes one step.
        init = lax.optimization_barrier(init)
    predicate = _closure(op.predicate, env, [v.aval for v in op.predicate.outputs])
    body = _closure(op.body, env, avals)
    return lax.while_loop(lambda c: predicate(*c)[0], lambda c: body(*c), init)


def _checkpointed(op: While, env: Environment, init: Sequence[Any], rows: int) -> Sequence[Any]:
    """A loop with reverse mode: what may be differentiated is an argument, so is what no step
    changes.
    """
    fixed = [c.is_invariant for c in op.carries]
    captured = dict.fromkeys(v for region in op.regions for v in region.captures())

    def run(region: Region, constants: Sequence[Any], carries: Sequence[Any]) -> list[Any]:
        outer, kept, moved = (
            constants[: len(captured)],
            iter(constants[len(captured) :]),
            iter(carries),
        )
        args = [next(kept if is_fixed else moved) for is_fixed in fixed]
        return evaluate(region, args, dict(zip(captured, outer, strict=True)))

    def step(constants: Sequence[Any], carries: Sequence[Any]) -> list[Any]:
        made = compress(run(op.body, constants, carries), map(not_, fixed))
        return _as_typed(list(made), [compat_types.aval_of(x) for x in carries])

    moved = iter(
        checkpointed.while_loop(
            lambda constants, carries: run(op.predicate, constants, carries)[0],
            step,
            [*(_read(env, v) for v in captured), *compress(init, fixed)],
            list(compress(init, map(not_, fixed))),
            rows,
        )
    )
    return [x if is_fixed else next(moved) for is_fixed, x in zip(fixed, init, strict=True)]


def _cond(op: Cond, env: Environment) -> Sequence[Any]:
    branches = [_closure(region, env, [v.aval for v in op.results]) for region in op.branches]
    selector = _read(env, op.selector)
    if len(branches) == 2:
        return list(lax.cond(selector, branches[1], branches[0]))
    if isinstance(op.selector, Constant) and int(selector) < 0:
        selector = len(branches) - 1  # as in XLA, where JAX clamps numbers
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
    body = partial(_closure, op.body, avals=[v.aval for v in op.results])
    jaxpr = compat.trace(
        lambda *args: body(dict(zip(captured, args, strict=True)))(), [v.aval for v in captured]
    )
    assert op.primitive is not None
    return compat.bind(
        op.primitive,
        [_read(env, v) for v in captured],
        {**op.params, "jaxpr": compat.opened(jaxpr)},
    )


def _call(op: Call, env: Environment) -> Sequence[Any]:
    args, avals = [_read(env, v) for v in op.operands], [v.aval for v in op.results]
    if op.name == "shard_map":
        mapped: Callable[..., Any] = jax.shard_map(
            lambda *xs: tuple(_as_typed(evaluate(op.body, xs, {}), avals)), **shard_map_options(op)
        )
        return list(mapped(*args))
    jaxpr = compat.trace(_closure(op.body, {}, avals), [v.aval for v in op.body.params])
    assert op.primitive is not None
    return compat.bind(op.primitive, args, {**op.params, "jaxpr": jaxpr})


_RULES: dict[type[Op], Rule] = {
    Scan: _loop,
    While: _loop,
    Cond: _cond,
    Remat: _remat,
    Call: _call,
}
