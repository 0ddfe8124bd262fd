"""Small changes to a program, most of them near a condition of some pass.

Each keeps the program well typed.  It says whether it found a place to change.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.ir import (
    UNDEFINED,
    Call,
    Carry,
    Cond,
    Constant,
    Graph,
    Op,
    Outcome,
    Region,
    Scan,
    Source,
    Stack,
    Value,
    While,
)
from jaxpr_opt.rewriter import Rewriter

Mutation = Callable[[Graph, Rewriter, random.Random], bool]

GROUPS = [
    [lax.add_p, lax.sub_p, lax.mul_p, lax.max_p, lax.min_p, lax.div_p],
    [lax.lt_p, lax.le_p, lax.gt_p, lax.ge_p, lax.eq_p, lax.ne_p],
    [lax.and_p, lax.or_p, lax.xor_p],
    [lax.neg_p, lax.sin_p, lax.tanh_p, lax.exp_p, lax.log_p, lax.sqrt_p, lax.sign_p, lax.floor_p],
    [lax.reduce_max_p, lax.reduce_min_p],
    [lax.cumsum_p, lax.cumprod_p, lax.cummax_p, lax.cummin_p],
]
"""Primitives that take each other's places."""

INTS = (0, 1, -1, 2, 3, 4, 5, 7, 100, 127, 128, 255, -128)
FLOATS = (0.0, 1.0, -1.0, -0.0, 0.5, float("nan"), float("inf"), float("-inf"), 1e30)


def copy_of(graph: Graph) -> tuple[Graph, Rewriter]:
    """The same program, to be changed."""
    made = Graph(Region(), graph.name, graph.debug_info, graph.phase)
    rw = Rewriter(made)
    made.body = rw.copy_region(graph.body, {})
    made.body.owner = made
    count = len(graph.cotangents)
    made.cotangents = made.inputs[len(made.inputs) - count :] if count else ()
    made.opened = graph.opened
    return made, Rewriter(made)


def is_plain(value: Value) -> bool:
    """Whether a value is an array of numbers."""
    return isinstance(value.dtype, np.dtype) and value.dtype != jax.dtypes.float0


def may_change(op: Op) -> bool:
    """Whether an op may be changed: what JAX made by transposing stays linear."""
    return not op.source.transposed and op.name != UNDEFINED and not _is_isolated(op)


def _is_isolated(op: Op) -> bool:
    around = op.parent
    while around is not None and not isinstance(around, Call):
        around = around.parent
    return around is not None


def ops(graph: Graph, rng: random.Random) -> list[Op]:
    """Ops that may be changed, in random order."""
    found = [op for op in graph.walk() if may_change(op)]
    rng.shuffle(found)
    return found


def visible(op: Op) -> Iterator[Value]:
    """Values that an op may read."""
    around: Op | None = op
    while around is not None and around.region is not None:
        yield from around.region.params
        for each in around.region.ops:
            if each is around:
                break
            yield from each.results
        around = around.parent


def _alike(value: Value, op: Op) -> list[Value]:
    return [v for v in visible(op) if v is not value and v.aval == value.aval]


def constant(value: Value, rw: Rewriter, rng: random.Random, before: Op) -> Value:
    """A number of the type of a value."""
    aval, dtype = value.aval, value.dtype
    number = _number(dtype, rng)
    return rw.insert(lambda: jnp.full(aval.shape, number, dtype), before=before)


def _number(dtype: Any, rng: random.Random) -> Any:
    if dtype == np.bool_:
        return np.asarray(rng.random() < 0.5)
    if jnp.issubdtype(dtype, jnp.integer):
        return np.asarray(rng.choice(INTS)).astype(dtype)
    return np.asarray(rng.choice(FLOATS)).astype(dtype)


# -- what is read ---------------------------------------------------------------------------------


def rewire(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Make an op read another value of the same type."""
    for op in ops(graph, rng):
        places = [(i, v) for i, v in enumerate(op.operands) if is_plain(v)]
        rng.shuffle(places)
        for index, value in places:
            if others := _alike(value, op):
                rw.set_operand(op, index, rng.choice(others))
                return True
    return False


def renumber(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Make an op read a constant, or another constant."""
    for op in ops(graph, rng):
        plain = [i for i, v in enumerate(op.operands) if is_plain(v) and not _weak(v)]
        known = [i for i in plain if isinstance(op.operands[i], Constant)]
        if plain and (known or rng.random() < 0.3):
            index = rng.choice(known or plain)
            rw.set_operand(op, index, constant(op.operands[index], rw, rng, op))
            return True
    return False


def _weak(value: Value) -> bool:
    return bool(getattr(value.aval, "weak_type", False))


def shift(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Move an integer by a little, or reflect, wrap or clamp it."""
    by = rng.choice((1, -1, 1, -1, 2, 4, -4, 100))
    kinds = [
        lambda i: i + np.asarray(by).astype(i.dtype),
        lambda i: np.asarray(3).astype(i.dtype) - i,
        lambda i: lax.rem(i, np.asarray(2).astype(i.dtype)),
        lambda i: lax.min(i, np.asarray(1).astype(i.dtype)),
        lambda i: i * np.asarray(2).astype(i.dtype),
        lambda i: lax.convert_element_type(lax.convert_element_type(i, np.int8), i.dtype),
    ]
    fun = rng.choice([kinds[0], kinds[0], *kinds])
    return _through(graph, rw, rng, fun, lambda v: jnp.issubdtype(v.dtype, jnp.integer))


def compute(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Compute with a float on its way."""
    kinds: list[Callable[[Any], Any]] = [
        lax.neg, lambda x: x + 1, lambda x: x * 0.5, lambda x: x * 0, jnp.sin, lax.stop_gradient,
        lambda x: x[::-1] if x.ndim else x, lax.optimization_barrier,
        lambda x: x.astype(jnp.bfloat16).astype(x.dtype), lambda x: x / x,
        lambda x: jnp.where(x < 0.3, x, 0), lambda x: lax.sort(x) if x.ndim else x,
    ]  # fmt: skip
    return _through(
        graph, rw, rng, rng.choice(kinds), lambda v: jnp.issubdtype(v.dtype, np.floating)
    )


def negate(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Negate a bool on its way."""
    return _through(graph, rw, rng, lax.bitwise_not, lambda v: v.dtype == np.bool_)


def _through(
    graph: Graph, rw: Rewriter, rng: random.Random, fun: Any, fits: Callable[[Value], bool]
) -> bool:
    """Put a function between a value and one that reads it."""
    for op in ops(graph, rng):
        places = [i for i, v in enumerate(op.operands) if is_plain(v) and fits(v)]
        if places:
            index = rng.choice(places)
            value = op.operands[index]
            new = rw.typed(fun, value.aval, value, before=op)
            if new.aval == value.aval:
                rw.set_operand(op, index, new)
                return True
    return False


def combine(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Mix another value of the same type into one: by a sum, or a select."""
    for op in ops(graph, rng):
        places = [i for i, v in enumerate(op.operands) if is_plain(v)]
        rng.shuffle(places)
        for index in places:
            value = op.operands[index]
            others = _alike(value, op)
            bools = [v for v in visible(op) if v.dtype == np.bool_ and v.shape == ()]
            if not others:
                continue
            other = rng.choice(others)
            if bools and rng.random() < 0.6:
                p = rng.choice(bools)
                new = rw.typed(lax.select, value.aval, p, value, other, before=op)
            elif value.dtype != np.bool_:
                new = rw.typed(lax.add, value.aval, value, other, before=op)
            else:
                new = rw.typed(lax.bitwise_and, value.aval, value, other, before=op)
            if new.aval == value.aval:
                rw.set_operand(op, index, new)
                return True
    return False


# -- what is computed -----------------------------------------------------------------------------


def replace_primitive(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Compute something else of the same operands."""
    for op in ops(graph, rng):
        group = next((g for g in GROUPS if op.primitive in g), None)
        if group is None or not is_plain(op.operands[0]) or op.operands[0].dtype == np.bool_:
            continue
        is_float = jnp.issubdtype(op.operands[0].dtype, jnp.inexact)
        if group is GROUPS[3] and not is_float:
            continue
        primitive = rng.choice(group)
        params = {k: v for k, v in op.params.items() if k != "accuracy"}
        if primitive in {lax.sin_p, lax.tanh_p, lax.exp_p, lax.log_p, lax.sqrt_p}:
            params["accuracy"] = None
        made = Op(
            primitive.name, op.operands, [v.aval for v in op.results],
            primitive=primitive, params=params, source=op.source,
        )  # fmt: skip
        rw.place(made, op)
        rw.replace(op.result, made.result)
        rw.erase(op)
        return True
    return False


def swap(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Swap two operands of the same type."""
    for op in ops(graph, rng):
        n = len(op.operands)
        pairs = [
            (i, j) for i in range(n) for j in range(i) if _same(op.operands[i], op.operands[j])
        ]
        if pairs:
            i, j = rng.choice(pairs)
            first, second = op.operands[i], op.operands[j]
            rw.set_operand(op, i, second)
            rw.set_operand(op, j, first)
            return True
    return False


def _same(a: Value, b: Value) -> bool:
    return a is not b and a.aval == b.aval


def duplicate(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Compute a value twice, for two readers."""
    for op in ops(graph, rng):
        shared = [v for v in op.results if len(v.uses) > 1]
        if shared and not op.effects and not op.is_terminator:
            copy = rw.copy(op, {})
            rw.place(copy, op)
            for old, new in zip(op.results, copy.results, strict=True):
                if len(old.uses) > 1:
                    use = rng.choice(list(old.uses))
                    rw.set_operand(use.op, use.position, new)
            return True
    return False


def reverse(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Run a loop the other way."""
    loops = [op for op in ops(graph, rng) if isinstance(op, Scan)]
    for loop in loops[:1]:
        rw.set_scan(loop, reverse=not loop.reverse)
    return bool(loops)


def swap_branches(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Swap the values that two branches of a cond give a result."""
    for op in ops(graph, rng):
        if isinstance(op, Cond) and len(op.branches) == 2:
            predicate = rw.insert(lax.bitwise_not, op.selector, before=op)
            rw.set_selector(op, predicate)
            return True
    return False


# -- more of it -----------------------------------------------------------------------------------


def expose(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Return a value from the middle of the program: through the loops and conds around it."""
    found = [v for op in ops(graph, rng) for v in op.results if is_plain(v)]
    params = [p for op in graph.walk() for r in op.regions for p in r.params if is_plain(p)]
    candidates = found[:3] + rng.sample(params, min(2, len(params)))
    if not candidates:
        return False
    value: Value | None = rng.choice(candidates)
    while value is not None and value.region is not graph.body:
        value = _outwards(value, rw)
    if value is None:
        return False
    rw.set_outputs(graph.body, [*graph.outputs, value])
    return True


def _outwards(value: Value, rw: Rewriter) -> Value | None:
    """A value of a region as a result of the op around it."""
    owner = value.region.owner if value.region is not None else None
    if isinstance(owner, Scan):
        stack = Stack(value, rw.new_value(rw.stacked_aval(value, owner.length)))
        rw.set_scan(owner, stacks=[*owner.stacks, stack])
        return stack.result
    if isinstance(owner, Cond):
        mine = [r for r in owner.branches if r is value.region]
        values = []
        for branch in owner.branches:
            if branch in mine:
                values.append(value)
            else:
                end = branch.terminator
                values.append(rw.insert(_zeros(value), before=end))
        if len({str(v.aval) for v in values}) > 1:
            return None
        result = rw.new_value(value.aval)
        rw.set_cond(owner, [*owner.outcomes, Outcome(result, tuple(values))])
        return result
    return None


def carry(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Carry a value of one step into the next, where another is read."""
    for loop in [op for op in ops(graph, rng) if isinstance(op, Scan)]:
        inside = [op for op in loop.body.ops if may_change(op)]
        rng.shuffle(inside)
        for op in inside:
            for index, old in enumerate(op.operands):
                outer = [v for v in visible(loop) if v.aval == old.aval]
                if not is_plain(old) or not loop.body.defines(old) or not outer:
                    continue
                param, result = rw.new_value(old.aval), rw.new_value(old.aval)
                made = Carry(rng.choice(outer), param, old, result)
                rw.set_scan(loop, carries=[*loop.carries, made])
                rw.set_operand(op, index, param)
                return True
    return False


def under_a_cond(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Compute a value only if some predicate holds, and else take another."""
    for op in ops(graph, rng):
        bools = [v for v in visible(op) if v.dtype == np.bool_ and v.shape == ()]
        if op.regions or len(op.results) != 1 or not bools or op.effects or not is_plain(op.result):
            continue
        others = _alike(op.result, op)
        inner, outer = rw.new_region(), rw.new_region()
        cond = rw.new_cond(rng.choice(bools), [outer, inner], like=op, before=op)
        result = rw.new_value(op.result.aval)
        rw.replace(op.result, result)
        rw.move(op, inner.terminator)
        value = op.result
        end = outer.terminator
        if others and rng.random() < 0.7:
            other = rng.choice(others)
        else:
            other = rw.insert(_zeros(value), before=end)
        if other.aval != value.aval:
            other = rw.typed(lambda x: x, value.aval, other, before=end)
        rw.set_cond(cond, [Outcome(result, (other, value))])
        return True
    return False


def _zeros(like: Value) -> Callable[[], Any]:
    return lambda: jnp.zeros(like.shape, like.dtype)


def touch(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Write to an array at an index, or read of it, on its way."""
    for op in ops(graph, rng):
        arrays = [
            i for i, v in enumerate(op.operands) if is_plain(v) and v.shape and v.shape[0] > 1
        ]
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


def say(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Print a scalar, in order."""
    for op in ops(graph, rng):
        numbers = [v for v in visible(op) if is_plain(v) and v.shape == ()]
        if not numbers or _in_while(op) or op.region is None:
            continue
        value = rng.choice(numbers)
        rw.insert_many(
            lambda x: (jax.debug.callback(_heard, x, ordered=True), ())[1], value, before=op
        )
        _spread_effects(op)
        return True
    return False


LOG: list[float] = []
"""What programs have said, in order."""


def _heard(x: Any) -> None:
    LOG.append(float(np.asarray(x).real))


def _in_while(op: Op) -> bool:
    around: Op | None = op
    while around is not None:
        if isinstance(around, While):
            return True
        around = around.parent
    return False


def _spread_effects(op: Op) -> None:
    """Effects of an op are effects of those around it."""
    assert op.region is not None and op.prev is not None
    found = frozenset(e for each in op.region.ops for e in each.effects)
    around = op.parent
    while around is not None:
        around.effects |= found
        around = around.parent


def forget_transposes(graph: Graph) -> None:
    """Make of a derivative a program like any other, of which nothing is known to be linear."""
    for op in graph.walk():
        op.source = Source()


def keep_promises(graph: Graph) -> None:
    """Take back what a program promises of its indices: they are about to change."""
    for op in graph.walk():
        if "unique_indices" in op.params:
            op.params["unique_indices"] = False
        if "indices_are_sorted" in op.params:
            op.params["indices_are_sorted"] = False
        mode = op.params.get("mode")
        if isinstance(mode, lax.GatherScatterMode) and mode.name == "PROMISE_IN_BOUNDS":
            safe = lax.GatherScatterMode
            op.params["mode"] = safe.CLIP if op.name == "gather" else safe.FILL_OR_DROP


MUTATIONS: tuple[Mutation, ...] = (
    rewire, rewire, rewire, renumber, shift, shift, compute, negate, combine, combine,
    replace_primitive, replace_primitive, swap, duplicate, reverse, swap_branches, expose, expose,
    carry, under_a_cond, touch, touch, say,
)  # fmt: skip
"""All of them, those that find most more than once."""


def mutated(graph: Graph, rng: random.Random) -> tuple[Graph, list[str]]:
    """A copy of a program with a few changes, and their names."""
    made, rw = copy_of(graph)
    if any(op.source.transposed for op in made.walk()) and rng.random() < 0.5:
        forget_transposes(made)
    keep_promises(made)
    names = []
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
        each = rng.choice(MUTATIONS)
        if each(made, rw, rng):
            names.append(each.__name__)
    return made, names
