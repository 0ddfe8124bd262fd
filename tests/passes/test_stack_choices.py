"""The number of the branch that was taken is stacked, not the value that it chose."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.passes.residuals.stack_choices import StackChoices
from jaxpr_opt.testing import check_refuses, check_rewrite
from tests.loops import alone, memory, unspecified

CHOICES = StackChoices()
TYPES = "f32[4,100]", "f32[100]", "i32[6]"


def forth_and_back(choose, *, step=lambda c, w: jnp.tanh(c * w)):
    """A loop that chooses something, and one that reads it again."""

    def program(ws, c, at):
        def forth(c, i):
            w = choose(ws, c, i)
            return step(c, w), w

        c, chosen = lax.scan(forth, c, at)
        return lax.scan(lambda c, w: (c * w, None), c, chosen, reverse=True)[0]

    return program


def test_what_is_chosen_of_two():
    """(2, 3) The predicate is made again of the row of the stream."""

    def program(v, w, c, at):
        def forth(c, i):
            x = lax.cond(i > 0, lambda: v, lambda: w)
            return jnp.tanh(c * x), x

        c, chosen = lax.scan(forth, c, at)
        return lax.scan(lambda c, x: (c * x, None), c, chosen, reverse=True)[0]

    check_rewrite(
        CHOICES,
        program,
        "f32[100]",
        "f32[100]",
        "f32[100]",
        "i32[6]",
        simplify=True,
        diff="""
          fn (v:f32[100], w:f32[100], c:f32[100], at:i32[6]) {
        -   c1:f32[100], ys:f32[6,100] = scan[6] carry(c=c) xs(x=at) {
        +   c1:f32[100] = scan[6] carry(c=c) xs(x=at) {
              g:bool[] = gt x 0
              r:f32[100] = cond g {
                yield v
              } else {
                yield w
              }
              m:f32[100] = mul c r
              t:f32[100] = tanh m
        -     yield carry(t) ys(r)
        +     yield carry(t)
            }
        -   c2:f32[100] = scan[6, reverse] carry(c=c1) xs(x=ys) {
        +   c2:f32[100] = scan[6, reverse] carry(c=c1) xs(at1=at) {
        +     g1:bool[] = gt at1 0
        +     r1:f32[100] = cond g1 {
        +       yield v
        +     } else {
        +       yield w
        +     }
        -     m:f32[100] = mul c x
        +     m:f32[100] = mul c r1
              yield carry(m)
            }
            return c2
          }
        """,
    )


VARIANTS = {
    "slices": lambda ws, c, i: lax.switch(i, [lambda k=k: ws[k] for k in range(4)]),
    "one is unspecified": lambda ws, c, i: lax.switch(
        i, [lambda: ws[0], lambda: unspecified(ws[0]), lambda: ws[2]]
    ),
    "a number that is carried": lambda ws, c, i: lax.cond(c[0] > 0, lambda: ws[0], lambda: ws[1]),
    "a number that is computed": lambda ws, c, i: lax.switch(
        jnp.argmax(c[:3]), [lambda k=k: ws[k] for k in range(3)]
    ),
    "a constant": lambda ws, c, i: lax.cond(i > 2, lambda: ws[0], lambda: jnp.ones(100)),
    "turned": lambda ws, c, i: lax.cond(i > 2, lambda: ws[0][::-1], lambda: ws[1]),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(variant):
    """(2, 3) The same bits, and no row is stacked."""
    at = jnp.array([0, 2, 1, 3, -1, 7])
    program = forth_and_back(VARIANTS[variant])
    ws, c = jnp.linspace(-1, 1, 400).reshape(4, 100), jnp.linspace(-2, 2, 100)
    if variant == "one is unspecified":
        at = at * 2 % 3 * 0
    graph = alone(CHOICES, program, ws, c, at, fires=True)
    forth = next(op for op in graph.body.ops if op.name == "scan")
    assert all(stack.value.shape == () for stack in forth.stacks)


def test_in_a_nest():
    """(1) What loops around stack."""

    def program(ws, c, at):
        def outer(c, _):
            def forth(c, i):
                w = lax.switch(i, [lambda k=k: ws[k] for k in range(3)])
                return jnp.tanh(c * w), w

            return lax.scan(forth, c, at)

        def back(c, chosen):
            return lax.scan(lambda c, w: (c * w, None), c, chosen, reverse=True)

        c, chosen = lax.scan(outer, c, None, length=3)
        return lax.scan(lambda c, r: (back(c, r)[0], None), c, chosen, reverse=True)[0]

    alone(CHOICES, program, *TYPES, fires=True)


def test_a_number_that_may_come_out_otherwise_is_stacked():
    """(3) One instruction may multiply and add, and round once; elsewhere two may do it."""

    def program(ws, c, at, xs):
        def forth(c, both):
            i, x = both
            w = lax.switch((i * x + x).astype(int), [lambda k=k: ws[k] for k in range(3)])
            return jnp.tanh(c * w), w

        c, chosen = lax.scan(forth, c, (at.astype(jnp.float32), xs))
        return lax.scan(lambda c, w: (c * w, None), c, chosen, reverse=True)[0]

    graph = alone(CHOICES, program, *TYPES, "f32[6]", fires=True)
    forth, _ = (op for op in graph.body.ops if op.name == "scan")
    assert [stack.value.type for stack in forth.stacks] == ["i32[]"]


REFUSED = {
    "is made in the loop": lambda ws, c, i: lax.cond(i > 0, lambda: ws[0], lambda: c),
    "is as small as the number of a branch": lambda ws, c, i: lax.cond(
        i > 0, lambda: ws[0, :1], lambda: ws[1, :1]
    ),
}


@pytest.mark.parametrize("because", REFUSED)
def test_refused(because):
    """(2) By the reason that it gives."""
    check_refuses(CHOICES, forth_and_back(REFUSED[because]), *TYPES, because=because)


def test_what_is_computed_in_a_branch_stays():
    """(2) It would be computed again."""
    program = forth_and_back(
        lambda ws, c, i: lax.cond(i > 0, lambda: jnp.sin(ws[0]), lambda: ws[1])
    )
    check_refuses(CHOICES, program, *TYPES, because="is made in the loop")


def test_branches_with_effects_stay():
    """(2) They would be heard again."""

    def choose(ws, c, i):
        def one():
            jax.debug.print("one")
            return ws[0]

        return lax.cond(i > 0, one, lambda: ws[1])

    check_refuses(CHOICES, forth_and_back(choose), *TYPES, because="a branch has effects")


def test_a_stack_that_is_read_whole_stays():
    """(1) It has to be there."""

    def program(ws, c, at):
        def forth(c, i):
            w = lax.cond(i > 0, lambda: ws[0], lambda: ws[1])
            return jnp.tanh(c * w), w

        return lax.scan(forth, c, at)

    check_refuses(CHOICES, program, *TYPES, because="is not read row by row")


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("above", [False, True])
def test_experts(above, rows):
    """The gradient stores no weights, and makes no zeros as large."""
    ws, c = jnp.linspace(-1, 1, 4 * 32 * 32).reshape(4, 32, 32), jnp.linspace(-1, 1, 32)

    def loss(ws, c, at):
        each = list(ws)
        experts = [lambda k=k: ws[k] if rows else each[k] for k in range(4)]

        def step(c, i):
            return lax.switch(i, [lambda c, e=e: jnp.tanh(c @ e()) for e in experts], c), None

        return jnp.sum(lax.scan(step, c, at)[0] ** 2)

    at = jnp.arange(64) % 4
    gradient = optimize(jax.grad(loss)) if above else jax.grad(optimize(loss))
    assert memory(gradient, ws, c, at) < at.size * ws[0].nbytes // 3
    assert jnp.allclose(gradient(ws, c, at), jax.grad(loss)(ws, c, at), rtol=1e-5)
