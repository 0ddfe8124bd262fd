"""Arrays by the piece: what is said, and what is not worth saying."""

import jax
import jax.numpy as jnp
from jax import lax

from jaxpr_opt.lint.run import lint
from tests.lint import threads
from tests.lint.threads import f32, i32


def found(program, *args):
    return [(each.code, each.fixed_by) for each in lint(program, *args)]


def line_after(function, count):
    return function.__code__.co_firstlineno + count


def test_what_is_said_of_a_copy():
    (finding,) = lint(jax.grad(threads.carried_slices), f32(1000, 10, 5))
    assert finding.says == (
        "XLA copies the whole f32[1000,10,5] in each of 1,000 steps, to write a slice"
    )
    assert finding.reason.startswith("a step still uses the old slice after it has overwritten it")
    assert finding.fix == (
        "`optimize` does it (stack-carried-updates); or read slices as `xs` of the scan and return"
        " them as its `ys`"
    )
    assert (finding.shape, finding.bytes) == ("f32[1000,10,5]", 200_000_000)
    assert finding.formula == "1000 x 200 kB"


def test_nobody_knows_how_often_a_while_runs():
    (finding,) = lint(threads.update_in_a_vmapped_while, f32(10, 30_000), i32(10))
    assert finding.says == (
        "a select copies the whole f32[10,30000] in every step, to write a slice or not"
    )
    assert (finding.formula, finding.bytes) == ("n x 1.2 MB", 1_200_000)


def test_what_no_pass_can_fix_says_why_and_what_to_write():
    def heap(values, places):
        def step(values, i):
            top = values[i]
            last = lax.fori_loop(0, 9, lambda k, best: jnp.maximum(best, values[i + k]), top)
            return values.at[i].set(2.0), last

        return lax.scan(step, values, places)

    (finding,) = lint(heap, f32(30_000), i32(3000))
    assert (finding.code, finding.fixed_by) == ("JXO201", "")
    assert finding.frame[1] == line_after(heap, 4)
    assert "`optimize` does not change it: " in finding.reason
    assert finding.fix == "write first, then read what the next step needs, and carry that"


def test_reads_for_the_write_and_reads_after_it_are_in_place():
    def update(a, i):
        return a.at[i].set(jnp.sin(a[i + 1])), None

    def update_and_read(a, i):
        a = a.at[i].set(1.0)
        return a, a[i + 1]

    for step in (update, update_and_read):
        assert found(lambda a, places, s=step: lax.scan(s, a, places), f32(30_000), i32(3000)) == []


def test_small_arrays_are_copied_in_no_time():
    assert found(threads.pops, f32(1020), i32(10**6)) == []


def test_a_select_in_no_loop_is_one_select():
    def once(xs, i, p):
        return jnp.where(p, xs.at[i].set(1.0), xs)

    assert found(once, f32(10**6), i32(), threads.flags()) == []


def test_a_select_is_told_once_though_its_gradient_copies_too():
    def guarded(xs, stop):
        def step(carry, i):
            state, ys = carry
            state = jnp.sin(state + xs[i])
            return (state, jnp.where(i < stop, ys.at[i].set(state), ys)), None

        init = jnp.zeros(()), jnp.zeros_like(xs)
        return jnp.sum(lax.scan(step, init, jnp.arange(xs.size))[0][1] ** 2)

    (finding,) = lint(jax.grad(guarded), f32(4000), i32())
    assert (finding.code, finding.fixed_by) == ("JXO202", "sink-select-into-update")
    assert finding.frame[1] == line_after(guarded, 4)


def test_a_select_by_what_is_read_elsewhere_says_what_to_write():
    def step(carry, i):
        xs, total = carry
        new = xs.at[i].set(1.0)
        return (jnp.where(i < 7, new, xs), total + jnp.sum(new)), None

    def program(xs, places):
        return lax.scan(step, (xs, 0.0), places)[0]

    (finding,) = lint(program, f32(30_000), i32(100))
    assert (finding.code, finding.fixed_by) == ("JXO202", "")
    assert finding.frame[1] == line_after(step, 2)
    assert finding.reason.endswith("what scatter makes is read elsewhere, too")
    assert finding.fix == "select the slice: `ys.at[i].set(jnp.where(p, y, ys[i]))`"


def test_xla_sees_through_an_index_in_a_single_loop():
    def words(table, ids):
        def word(state, i):
            return jnp.tanh(state + table[i] * table[i + 1]), None

        return jnp.sum(lax.scan(word, jnp.zeros(16), ids)[0])

    assert found(jax.grad(words), f32(4096, 16), i32(1000)) == []


def test_an_inner_loop_over_the_whole_table_needs_the_whole_table():
    def tokens(weights, xs):
        def token(state, x):
            layer = lambda i, s: jnp.tanh(s @ weights[i])
            return lax.fori_loop(0, weights.shape[0], layer, state + x), None

        return jnp.sum(lax.scan(token, jnp.zeros(32), xs)[0])

    assert found(jax.grad(tokens), f32(64, 32, 32), f32(64, 32)) == []
