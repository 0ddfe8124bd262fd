"""Branches that update a buffer become loops of at most one step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.bridge import compat_devices
from jaxpr_opt.cost.model import cost_model, using
from jaxpr_opt.passes.in_place.write_in_branches import WriteInBranches
from jaxpr_opt.testing import (
    assert_close,
    assert_same_bits,
    assert_same_derivatives,
    check_refuses,
    check_rewrite,
)
from tests.loops import alone, memory

WRITE = WriteInBranches()
N = 64


@pytest.fixture(autouse=True)
def _eager(monkeypatch):
    """Programs here are small, and about what is done where it helps."""
    monkeypatch.setattr(compat_devices, "KEEPS_BARRIERS", False)
    with using(cost_model().but(kernel=0.0)):
        yield


def stepping(step):
    """A loop that carries a buffer; each step has a place, a number and a choice."""

    def program(c, places, numbers, choices):
        return lax.scan(lambda c, x: step(c, *x), c, (places, numbers, choices))

    return program


TYPES = "f32[64]", "i32[3]", "f32[3]", "i32[3]"


def by_kind(c, i, u, k):
    """Several kinds of writes."""
    cases = [lambda c: c.at[i].set(u), lambda c: c.at[i].multiply(u), lambda c: c]
    return lax.switch(k, cases, c), u


def test_two_writes_one_after_the_other():
    """(1)"""
    check_rewrite(
        WRITE,
        stepping(
            lambda c, i, u, k: (
                lax.cond(
                    u > 0,
                    lambda c: lax.dynamic_update_slice(
                        lax.dynamic_update_slice(c, c[:2] + u, (i,)), c[2:3], (k,)
                    ),
                    lambda c: c,
                    c,
                ),
                u,
            )
        ),
        *TYPES,
        diff="""
            fn (c:f32[64], places:i32[3], numbers:f32[3], choices:i32[3]) {
              c1:f32[64] = scan[3] carry(c=c) xs(x=places, x1=numbers, x2=choices) {
                g:bool[] = gt x1 0.0
                c1:i32[] = convert_element_type g
          -     r:f32[64] = cond g {
          -       s:f32[2] = slice[:2] c
          -       a:f32[2] = add s x1
          -       l:bool[] = lt x 0
          -       a1:i32[] = add x 64
          -       s1:i32[] = select_n l x a1
          -       d:f32[64] = dynamic_update_slice c a s1
          -       s2:f32[1] = slice[2:3] c
          -       l1:bool[] = lt x2 0
          -       a2:i32[] = add x2 64
          -       s3:i32[] = select_n l1 x2 a2
          -       d1:f32[64] = dynamic_update_slice d s2 s3
          -       yield d1
          -     } else {
          -       yield c
          -     }
          +     c2:bool[], c3:f32[64] = while carry(c2=g, c3=c) {
          +       yield c2
          +     } do {
          +       s4:f32[2] = slice[:2] c3
          +       a3:f32[2] = add s4 x1
          +       l:bool[] = lt x 0
          +       a1:i32[] = add x 64
          +       s1:i32[] = select_n l x a1
          +       d2:f32[64] = dynamic_update_slice c3 a3 s1
          +       s5:f32[1] = slice[2:3] c3
          +       l1:bool[] = lt x2 0
          +       a2:i32[] = add x2 64
          +       s3:i32[] = select_n l1 x2 a2
          +       d3:f32[64] = dynamic_update_slice d2 s5 s3
          +       yield carry(False, d3)
          +     }
          -     yield carry(r)
          +     yield carry(c3)
              }
              return c1, numbers
            }
        """,
    )


PROGRAMS = {
    "several kinds": by_kind,
    "all write": lambda c, i, u, k: (
        lax.switch(k, [lambda c: c.at[i].set(u), lambda c: c.at[-i].add(u * c[i])] * 2, c),
        c[i],
    ),
    "false writes": lambda c, i, u, k: (
        lax.cond(k > 1, lambda c: c, lambda c: c.at[i].add(c[i] * u).at[k].set(u), c),
        u,
    ),
    "what else it makes": lambda c, i, u, k: lax.switch(
        k,
        [
            lambda c: (c.at[i].set(u), c[i + 1]),
            lambda c: (c.at[i].mul(u).at[k].add(c[i]), 7.0),
            lambda c: (c, u),
        ],
        c,
    ),
    "the array as another result": lambda c, i, u, k: lax.switch(
        k,
        [
            lambda c: (c.at[i].set(u).at[k].add(1.0), c),
            lambda c: (c, jnp.full(N, -0.0)),
            lambda c: (c.at[0].add(c[i]), c),
        ],
        c,
    ),
    "read beside": lambda c, i, u, k: (
        lax.cond(k > 0, lambda c: c.at[i].set(c[i - 1] * c[i]).at[k].set(u), lambda c: c, c),
        c[i],
    ),
    "a loop writes": lambda c, i, u, k: (
        lax.cond(
            k > 0,
            lambda c: lax.fori_loop(0, 3, lambda n, c: c.at[i + n].add(c[n] * u), c),
            lambda c: c,
            c,
        ),
        c[k],
    ),
    "a branch in a branch": lambda c, i, u, k: (
        lax.switch(k, [lambda c: c.at[i].set(lax.cond(u > 0, lambda: c[i], lambda: u))] * 3, c),
        u,
    ),
}
ARGS = (
    jnp.arange(1.0, N + 1),
    jnp.array([3, -1, 99, 3, 5, 63]),
    jnp.array([2.0, -1.0, np.nan, 3.0, 0.5, np.inf]),
    jnp.array([0, 1, 2, 3, -1, 1]),
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_bits(name):
    """(1) Whatever branch is taken, the last by a selector out of range, and wherever it writes."""
    alone(WRITE, stepping(PROGRAMS[name]), *ARGS, fires=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "bool", "complex64"])
def test_dtypes(dtype):
    def step(c, i, u, k):
        cases = [lambda c: c.at[i].set(u), lambda c: c.at[k].set(c[i]).at[i].set(u), lambda c: c]
        return lax.switch(k, cases, c), u

    given = ARGS[0].astype(dtype), ARGS[1], jnp.ones(6).astype(dtype), ARGS[3]
    alone(WRITE, stepping(step), *given, fires=True)


def test_keys():
    """(1) Keys are written, and made beside."""

    def step(c, i, u, k):
        a, b = jax.random.split(c[0])
        cases = [lambda c: (c.at[i].set(a), b), lambda c: (c.at[i].set(b).at[k].set(a), a)]
        return lax.switch(k, [*cases, lambda c: (c, a)], c)

    program = stepping(step)
    keys = jax.random.split(jax.random.key(0), N)
    ours, want = optimize(program)(keys, *ARGS[1:]), program(keys, *ARGS[1:])
    for one, other in zip(ours, want, strict=True):
        assert_same_bits(jax.random.key_data(one), jax.random.key_data(other))


def noted(c, i, u, k):
    jax.debug.callback(lambda x: None, u)
    return c.at[i].set(u)


REFUSED = {
    "have effects": lambda c, i, u, k: (
        lax.switch(k, [lambda c: noted(c, i, u, k), lambda c: c.at[k].set(u), lambda c: c], c),
        u,
    ),
    "is not one buffer": lambda c, i, u, k: (
        lax.switch(k, [lambda c: c.at[i].set(u), lambda c: c.at[k].set(u)] * 2, c)[::-1],
        c[i],
    ),
    "is read afterwards": lambda c, i, u, k: (
        (d := lax.switch(k, [lambda c: c.at[i].set(u), lambda c: c.at[k].set(u)] * 2, c)),
        jnp.cumsum(c)[0] + d[0],
    ),
}


@pytest.mark.parametrize("because", REFUSED)
def test_refused(because):
    """(2) Or it costs a copy all the same."""
    check_refuses(WRITE, stepping(REFUSED[because]), *TYPES, because=because)


TABLE = np.arange(64.0, dtype=np.float32)
NOT = {
    "all of it": lambda c, i, u, k: (
        lax.switch(k, [lambda c: c * u, lambda c: c.at[i].set(u), lambda c: c], c),
        u,
    ),
    "another array": lambda c, i, u, k: (
        lax.switch(k, [lambda c: jnp.zeros(N), lambda c: c.at[i].set(u), lambda c: c], c),
        u,
    ),
    "none of it": lambda c, i, u, k: (lax.cond(k > 0, jnp.flip, jnp.negative, c), u),
    "an array from outside": lambda c, i, u, k: (
        lax.cond(k > 0, lambda c: jnp.asarray(TABLE), lambda c: c.at[i].set(u), c),
        u,
    ),
    "nothing": lambda c, i, u, k: (lax.switch(k, [lambda c: c, lambda c: c], c), c[i]),
}


@pytest.mark.parametrize("name", NOT)
def test_not_looked_at(name):
    """(1)"""
    alone(WRITE, stepping(NOT[name]), *TYPES, fires=False)


def test_small_arrays():
    """A loop for each branch takes longer than a copy."""
    with using(cost_model().but(kernel=1e-6)):
        alone(WRITE, stepping(by_kind), *TYPES, fires=False)


def test_where_branches_are_not_copied(monkeypatch):
    """From JAX 0.11 on, unless something else is read."""
    monkeypatch.setattr(compat_devices, "KEEPS_BARRIERS", True)
    alone(WRITE, stepping(by_kind), *TYPES, fires=False)
    alone(WRITE, stepping(PROGRAMS["read beside"]), *ARGS, fires=True)


def test_outside_of_loops():
    """(3) And while JAX may still differentiate."""
    once = lambda c, i, u, k: by_kind(c, i, u, k)[0]
    alone(WRITE, once, "f32[64]", "i32[]", "f32[]", "i32[]", fires=False)
    alone(WRITE, stepping(by_kind), *TYPES, fires=False, phase="differentiable")


@pytest.mark.parametrize("name", ["several kinds", "read beside", "what else it makes"])
def test_nothing_is_copied(name):
    """What it is for: also in the loop back, and in a batch with one choice for all."""
    program = stepping(PROGRAMS[name])
    args = jnp.zeros(40_000), *ARGS[1:]
    assert memory(optimize(program), *args) < args[0].nbytes / 4
    loss = lambda c, *xs: jnp.sum(program(c, *xs)[1])
    for gradient in (optimize(jax.grad(loss)), jax.grad(optimize(loss))):
        assert memory(gradient, *args) < args[0].nbytes * 1.25
    batch = jax.vmap(program, (0, None, None, None))
    many = jnp.zeros((4, 40_000)), *args[1:]
    assert memory(optimize(batch), *many) < many[0].nbytes / 4
    assert_close(batch(*many), optimize(batch)(*many))


@pytest.mark.parametrize("name", ["several kinds", "read beside", "all write"])
def test_derivatives(name):
    finite = ARGS[0], ARGS[1], jnp.array([2.0, -1.0, 0.25, 3.0, 0.5, 1.0]), ARGS[3]
    program = stepping(PROGRAMS[name])
    assert_same_derivatives(program, optimize(program), *finite)
