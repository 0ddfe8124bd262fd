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
from jaxpr_opt.passes.laws.carry_truth_values import CarryTruthValues
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


@pytest.mark.parametrize("name", WAYS)
def test_a_loop_stops_early_by_it(name):
    program, x = WAYS[name], jnp.linspace(-0.5, 0.5, 6)
    is_asked = name != "alive, turned"  # but for what `simplify` finds
    alone(CARRY, program, "f32[6]", fires=is_asked)
    alone(CARRY, jax.vmap(program), "f32[3,6]", fires=is_asked)
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


@pytest.mark.parametrize("name", ["greatest", "one after the other", "alive"])
def test_gradients_stop_early_too(name):
    program, x = loss(WAYS[name]), jnp.linspace(-0.5, 0.5, 6)
    with using(EAGER):
        for ours in (jaxpr_opt.optimize(jax.grad(program)), jax.grad(jaxpr_opt.optimize(program))):
            assert_close(ours(x), jax.grad(program)(x))
            batch = jnp.stack([x, x + 1, x * jnp.nan])
            assert_close(jax.vmap(ours)(batch), jax.vmap(jax.grad(program))(batch))
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
