"""What is always zero or one is carried as a truth value, so that a loop stops early by it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxpr_opt
from jaxpr_opt.cost.model import using
from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.passes.laws.carry_truth_values import CarryTruthValues
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.loops import alone
from tests.prices import EAGER

CARRY = CarryTruthValues()


def rollout(become, *, begin=0.0, dtype=jnp.float32, stops=lambda done: done > 0.5, length=12):
    """Steps of which those after `done` do nothing; `become(done, d)` is what `done` is next."""

    def program(x):
        def step(carry, _):
            x, done = carry
            new = jnp.sin(x) * 1.1 + 0.1
            d = (jnp.max(jnp.abs(new)) > 0.95).astype(dtype)
            return (jnp.where(stops(done), x, new), become(done, d)), None

        done = jnp.asarray(begin(x) if callable(begin) else begin, dtype)
        return lax.scan(step, (x, done), None, length=length)[0]

    return program


def test_a_number_is_carried_as_a_truth_value():
    def program(x, q):
        def step(carry, q):
            x, done = carry
            return (
                jnp.where(done > 0.5, x, jnp.sin(x)),
                jnp.maximum(done, q.astype(x.dtype)),
            ), None

        return lax.scan(step, (x, 0 * q[0].astype(x.dtype)), q)[0]

    check_rewrite(
        CARRY,
        program,
        "f32[]",
        "bool[5]",
        diff="""
          fn (x:f32[], q:bool[5]) {
            s:bool[1] = slice[:1] q
            s1:bool[] = squeeze s
            c:f32[] = convert_element_type s1
            m:f32[] = mul 0.0 c
        +   n:bool[] = ne m 0.0
        -   c1:f32[], c2:f32[] = scan[5] carry(c=x, c1=m) xs(x=q) {
        +   c1:f32[], c3:bool[] = scan[5] carry(c=x, c3=n) xs(x=q) {
        +     s2:f32[] = select_n c3 0.0 1.0
        -     g:bool[] = gt c1 0.5
        +     g:bool[] = gt s2 0.5
              s:f32[] = sin c
              s1:f32[] = select_n g s c
              c2:f32[] = convert_element_type x
        -     m:f32[] = max c1 c2
        +     m:f32[] = max s2 c2
        +     n:bool[] = ne m 0.0
        -     yield carry(s1, m)
        +     yield carry(s1, n)
            }
        +   s2:f32[] = select_n c3 0.0 1.0
        -   return c1, c2
        +   return c1, s2
          }
        """,
    )


WAYS = {
    "greatest": rollout(jnp.maximum),
    "one after the other": rollout(lambda done, d: done + (1 - done) * d),
    "added, less both": rollout(lambda done, d: done + d - done * d),
    "chosen": rollout(lambda done, d: jnp.where(d > 0, 1.0, done)),
    "alive": rollout(lambda m, d: m * (1 - d), begin=1.0, stops=lambda m: m == 0),
    "alive, turned": rollout(lambda m, d: (1 - d) * m, begin=1, stops=lambda m: 1 - m),
    "integers": rollout(jnp.bitwise_or, dtype=jnp.int32, stops=lambda done: done == 1),
    "bfloat16": rollout(jnp.maximum, dtype=jnp.bfloat16, stops=partial(jnp.less_equal, 0.25)),
    "uint8": rollout(
        lambda m, d: jnp.minimum(m, 1 - d), begin=1, dtype=jnp.uint8, stops=lambda m: m < 1
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WAYS)
def test_a_loop_stops_early_by_it(name):
    program, x = WAYS[name], jnp.linspace(-0.5, 0.5, 6)
    alone(CARRY, program, "f32[6]", fires=True)
    alone(CARRY, jax.vmap(program), "f32[3,6]", fires=True)
    with using(EAGER):
        assert_close(jaxpr_opt.optimize(program)(x), program(x))
        assert "exit-loop-early" in str(jaxpr_opt.explain(program, x))


@pytest.mark.parametrize(
    "program",
    [
        rollout(jnp.maximum, begin=0.5),
        rollout(jnp.maximum, begin=-0.0),
        rollout(lambda done, d: done + d),
        rollout(jnp.maximum, dtype=jnp.complex64, stops=lambda done: done == 1),
        rollout(jnp.maximum, stops=lambda done: done > 1),
        rollout(jnp.maximum, stops=jnp.isnan),
        rollout(jnp.logical_or, dtype=bool, stops=lambda done: lax.eq(done, jnp.ones_like(done))),
    ],
)
def test_other_carries_stay(program):
    alone(CARRY, program, "f32[6]", fires=False)


def visited(x, places):
    """A table of the places that a step has been to, each of which counts once."""

    def step(carry, i):
        total, seen = carry
        new = jnp.where(seen > 0, 0.0, x).sum()
        return (total + new, seen.at[i].set(1.0)), None

    return lax.scan(step, (0.0, jnp.zeros(8)), places)[0]


def test_a_table_that_steps_write_into_stays():
    check_refuses(CARRY, visited, "f32[8]", "i32[5]", because="a step writes some")


@pytest.mark.parametrize(("reads", "fires"), [(lambda i: i[:2], False), (lambda i: i, True)])
def test_elements_of_a_map_that_a_step_reads(reads, fires):
    """(2) All others would be converted for them; a batch that is drawn again is read whole."""

    def program(alive, places):
        def step(alive, i):
            found = alive.at[reads(i)].get(mode="clip")
            return jnp.roll(alive, 1), (jnp.sum(found), alive > 0.5)

        return lax.scan(step, (alive > 0).astype(alive.dtype), places)

    args = "f32[8]", "i32[5,8]"
    if fires:
        alone(CARRY, program, *args, fires=True)
    else:
        check_refuses(CARRY, program, *args, because="a step reads some")


def test_nothing_is_lost_of_what_skipped_steps_would_compute():
    def program(x):
        def step(carry, _):
            x, done, total = carry
            new = jnp.where(done > 0.5, x, 1 / (x - 1))  # infinite in a step that is skipped
            total = total + (1 - done) * jnp.where(done > 0.5, 0.0, new)
            return (new, jnp.maximum(done, (new == 1).astype(jnp.float32)), total), done

        return lax.scan(step, (x, 0.0, 0.0), None, length=9)

    alone(CARRY, program, jnp.float32(2.0), fires=True)
    alone(CARRY, program, jnp.float32(jnp.nan), fires=True)
    with using(EAGER):
        for x in (2.0, -3.0, jnp.nan, jnp.inf):
            assert_close(jaxpr_opt.optimize(program)(x), program(x))


@pytest.mark.slow
def test_zero_times_infinity_stays_no_number():
    """XLA would make a select of a product with a converted truth value."""

    def program(h, rows, lengths):
        def step(carry, row):
            h, alive, total, t = carry
            new = jnp.sin(h) * 1.2
            total = total + alive * jnp.exp(new + row).sum(1)
            h = jnp.where(alive[:, None] > 0, new, h)
            return (h, alive * (t + 1 < lengths), total, t + 1), None

        return lax.scan(step, (h, jnp.ones(3), jnp.zeros(3), 0), rows)[0][2].sum()

    args = (
        jnp.linspace(-1, 1, 6).reshape(3, 2),
        jnp.zeros(40).at[30:].set(jnp.inf),
        jnp.arange(3, 6),
    )
    forth = jax.value_and_grad(program)
    alone(CARRY, program, *args, fires=True)
    assert jnp.isnan(program(*args))
    assert jnp.isnan(jaxpr_opt.optimize(program)(*args))
    assert jnp.isnan(jaxpr_opt.optimize(forth)(*args)[0])
    assert jnp.isnan(jax.value_and_grad(jaxpr_opt.optimize(program))(*args)[0])


def loss(program):
    def summed(x):
        x, done = program(x)
        return (x * x).sum() + done

    return summed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["greatest", "one after the other", "alive"])
def test_gradients_stop_early_too(name):
    program, x = loss(WAYS[name]), jnp.linspace(-0.5, 0.5, 6)
    with using(EAGER):
        batch = jnp.stack([x, x + 1, x * jnp.nan])
        made = lambda gradient: (jax.jit(gradient)(x), jax.jit(jax.vmap(gradient))(batch))
        wanted = made(jax.grad(program))
        for ours in (jaxpr_opt.optimize(jax.grad(program)), jax.grad(jaxpr_opt.optimize(program))):
            assert_close(made(ours), wanted)
        tangents = jax.jvp(jaxpr_opt.optimize(program), (x,), (x + 1,))
        assert_close(tangents, jax.jvp(program, (x,), (x + 1,)))


def test_loops_in_loops_and_loops_of_no_steps():
    def nested(x):
        def outer(done, _):
            inner = lambda k, _: (
                jnp.where(k > 0, k, jnp.maximum(k, jnp.int32(x > 0))),
                None,
            )
            return lax.scan(inner, done, None, length=3)[0], done

        return lax.scan(outer, 0, None, length=2)

    alone(CARRY, nested, "f32[]", fires=True)
    alone(CARRY, rollout(jnp.maximum, length=0), "f32[6]", fires=True)
    assert_close(jaxpr_opt.optimize(nested)(1.0), nested(1.0))


def test_a_loop_on_a_device_of_several():
    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Auto,))
    program = jax.shard_map(
        WAYS["greatest"], mesh=mesh, in_specs=P("i"), out_specs=(P("i"), P()), check_vma=False
    )
    x = np.linspace(-0.5, 0.5, 6, dtype=np.float32)
    alone(CARRY, program, x, fires=True)
    program = rollout(jnp.maximum, begin=lambda x: x > 9)
    varying = jax.shard_map(program, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    assert_close(jaxpr_opt.optimize(varying)(x), varying(x))


def network(mask, *, blend=lambda m, new, old: m * new + (1 - m) * old):
    """A recurrent network whose mask is a number for each step; `mask(lengths)` is it in all."""

    def program(w, h, xs, lengths):
        def step(h, row):
            x, m = row
            return blend(m[:, None], jnp.tanh(h @ w + x), h), None

        return (lax.scan(step, h, (xs, mask(lengths)))[0] ** 2).sum()

    return program


def padded(lengths):
    return (jnp.arange(8)[:, None] < lengths).astype(jnp.float32)


WEIGHTS, STATES, INPUTS = np.random.default_rng(0).normal(size=(3, 8, 4, 4)).astype(np.float32)
NETWORK = WEIGHTS[0], STATES[0], INPUTS, np.array([1, 3, 2, 0], np.int32)


def test_rows_of_a_mask_are_read_as_truth_values():
    check_rewrite(
        CARRY,
        lambda h, p: lax.scan(lambda h, m: (h * m, None), h, p.astype(h.dtype))[0],
        "f32[]",
        "bool[5]",
        diff="""
          fn (h:f32[], p:bool[5]) {
            c:f32[5] = convert_element_type p
        -   c1:f32[] = scan[5] carry(c=h) xs(x=c) {
        +   c1:f32[] = scan[5] carry(c=h) xs(x1=p) {
        +     s:f32[] = select_n x1 0.0 1.0
        -     m:f32[] = mul c x
        +     m:f32[] = mul c s
              yield carry(m)
            }
            return c1
          }
        """,
    )


def test_rows_that_were_turned_and_moved_are_read_as_truth_values():
    def program(h, p):
        rows = 1 - p.astype(h.dtype)[1:]
        return lax.scan(lambda h, m: (h * m, None), h, rows)[0]

    check_rewrite(
        CARRY,
        program,
        "f32[]",
        "bool[5]",
        diff="""
          fn (h:f32[], p:bool[5]) {
            c:f32[5] = convert_element_type p
            s:f32[4] = slice[1:] c
            s1:f32[4] = sub 1.0 s
        +   s2:bool[4] = slice[1:] p
        -   c1:f32[] = scan[4] carry(c=h) xs(x=s1) {
        +   c1:f32[] = scan[4] carry(c=h) xs(x1=s2) {
        +     n:bool[] = not x1
        +     s2:f32[] = select_n n 0.0 1.0
        -     m:f32[] = mul c x
        +     m:f32[] = mul c s2
              yield carry(m)
            }
            return c1
          }
        """,
    )


def stacked(number, *, read=lambda x, row: x * row):
    """Rows that one loop makes of truth values, and another one reads."""

    def program(x, p):
        rows = lax.scan(lambda c, p: (jnp.sin(c), number(c, p)), x, p)[1]
        return lax.scan(lambda c, row: (read(c, row), None), x, rows, reverse=True)[0]

    return program


def test_rows_are_stacked_as_truth_values():
    check_rewrite(
        CARRY,
        stacked(lambda c, p: 1 - p.astype(c.dtype)),
        "f32[]",
        "bool[5]",
        diff="""
          fn (x:f32[], p:bool[5]) {
        -   c:f32[], ys:f32[5] = scan[5] carry(c=x) xs(x=p) {
        +   c:f32[], ys1:bool[5] = scan[5] carry(c=x) xs(x=p) {
              s:f32[] = sin c
              c1:f32[] = convert_element_type x
              s1:f32[] = sub 1.0 c1
        -     yield carry(s) ys(s1)
        +     yield carry(s) ys(x)
            }
        +   n:bool[5] = not ys1
        +   b:f32[5] = broadcast_in_dim 0.0
        +   b1:f32[5] = broadcast_in_dim 1.0
        +   s2:f32[5] = select_n n b b1
        -   c1:f32[] = scan[5, reverse] carry(c=x) xs(x=ys) {
        +   c1:f32[] = scan[5, reverse] carry(c=x) xs(x1=ys1) {
        +     n:bool[] = not x1
        +     s2:f32[] = select_n n 0.0 1.0
        -     m:f32[] = mul c x
        +     m:f32[] = mul c s2
              yield carry(m)
            }
            return c1
          }
        """,
    )


MADE = {
    "by arithmetic": lambda c, p: p.astype(c.dtype) * (c > 0),
    "of more": lambda c, p: (jnp.arange(4.0) < c).astype(c.dtype)[1],
}


@pytest.mark.parametrize("name", MADE)
def test_rows_that_are_stacked_take_a_byte_an_element(name):
    graph = alone(CARRY, stacked(MADE[name]), "f32[]", "bool[5]", fires=True)
    loop = next(op for op in graph.body.ops if isinstance(op, Scan))
    assert [(stack.result.dtype, stack.result.shape) for stack in loop.stacks] == [(bool, (5,))]


@pytest.mark.parametrize(
    "program",
    [
        stacked(lambda c, p: p * c),  # (1)
        stacked(lambda c, p: jnp.where(p, 1.0, -0.0)),  # (1)
        stacked(lambda c, p: p.astype(c.dtype), read=jnp.add),  # (2)
        stacked(lambda c, p: p.astype(jnp.int32), read=lambda x, row: x + row * 3),  # (2)
        lambda x, p: lax.scan(lambda c, p: (jnp.sin(c), p.astype(c.dtype)), x, p),  # (3)
    ],
)
def test_other_rows_are_stacked_as_they_are(program):
    alone(CARRY, program, "f32[]", "bool[5]", fires=False)


def chained(rows, *, also=lambda rows: None, read=lambda x, row: x * row):
    """A loop that reads rows."""

    def program(x, p, numbers):
        made = rows(p, numbers)
        return lax.scan(lambda c, row: (read(c, row), None), x, made)[0], also(made)

    return program


@pytest.mark.parametrize(
    "program",
    [
        chained(lambda p, numbers: p * numbers),  # (3)
        chained(lambda p, numbers: jnp.where(p, 1.0, -0.0)),  # (3)
        chained(lambda p, numbers: jnp.where(p, 1.0, 0.5)),  # (3)
        chained(lambda p, numbers: jnp.cumsum(p.astype(float))),  # (3)
        chained(lambda p, numbers: p.astype(float), read=jnp.add),  # (2)
        chained(lambda p, numbers: p.astype(float), also=jnp.cumsum),  # (3)
        chained(lambda p, numbers: jnp.maximum(p.astype(float), p[0])),  # (3)
    ],
)
def test_other_rows_are_read_as_they_are(program):
    alone(CARRY, program, "f32[]", "bool[5]", "f32[5]", fires=False)


def test_truth_values_are_asked_of_no_number():
    always = lambda p, numbers: lax.convert_element_type(~p.astype(jnp.int32), bool).astype(float)
    alone(CARRY, chained(always), "f32[]", "bool[5]", "f32[5]", fires=True)


def test_rows_that_are_reduced_too():
    """(3) A loss is divided by how many of its rows count."""
    program = chained(lambda p, numbers: p.astype(float), also=jnp.sum)
    graph = alone(CARRY, program, "f32[]", "bool[5]", "f32[5]", fires=True)
    loop = next(op for op in graph.body.ops if isinstance(op, Scan))
    assert [stream.param.dtype for stream in loop.streams] == [bool]


BLENDS = {
    "both": lambda m, new, old: m * new + (1 - m) * old,
    "the difference": lambda m, new, old: old + m * (new - old),
    "integers": lambda m, new, old: m.astype(jnp.int32) * new + (1 - m.astype(jnp.int32)) * old,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BLENDS)
@pytest.mark.parametrize("inside", [True, False])
def test_the_loop_back_begins_at_the_last_step_that_counts(name, inside):
    program = network(padded, blend=BLENDS[name])
    wanted = jax.grad(program, (0, 1, 2))
    with using(EAGER):
        graph, _ = observe.optimized(wanted, NETWORK, {})
        assert not any(isinstance(op, Scan) for op in graph.walk())  # the loop forward, too
        inner = jax.grad(jaxpr_opt.optimize(program), (0, 1, 2))
        found = inner if inside else jaxpr_opt.optimize(wanted)
        assert_close(found(*NETWORK), wanted(*NETWORK))


def test_what_rewards_are_multiplied_by_is_carried_as_a_truth_value():
    def program(x):
        def step(carry, _):
            x, alive, total = carry
            new = jnp.sin(x) * 1.2
            return (new, alive * (jnp.max(new) < 0.9), total + alive * new.sum()), None

        return lax.scan(step, (x, jnp.float32(1), 0.0), None, length=9)[0][2]

    alone(CARRY, program, "f32[3]", fires=True)
    x = jnp.array([0.2, 0.1, -0.3])
    with using(EAGER):
        graph, _ = observe.optimized(jax.grad(program), (x,), {})
        assert not any(isinstance(op, Scan) for op in graph.walk())
        for ours in (jaxpr_opt.optimize(jax.grad(program)), jax.grad(jaxpr_opt.optimize(program))):
            assert_close(ours(x), jax.grad(program)(x))
