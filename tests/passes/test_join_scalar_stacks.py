"""Scalars that a loop hands to others are stacked as rows."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.bridge import compat_devices
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.engine.registry import resolve
from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.passes.codegen.join_scalar_stacks import JoinScalarStacks
from jaxpr_opt.testing import check_refuses, check_rewrite, traced
from tests.loops import alone
from tests.prices import EAGER

JOIN = JoinScalarStacks()


@pytest.fixture(autouse=True)
def few_stacks(monkeypatch):
    """Programs here are small, and about what is done where it helps."""
    monkeypatch.setattr(compat_devices, "COMPILES_LOOPS_WHOLE", True)
    with using(EAGER):
        yield


def stacks(xs, *made):
    """A loop that stacks what each of `made` makes of an element."""
    return lax.scan(lambda c, x: (c + x, tuple(f(x) for f in made)), 0.0, xs)


def total(streams, *, reverse=False):
    """A loop that adds up the products of a row."""

    def step(c, row):
        return c + jnp.prod(jnp.stack(row)), None

    return lax.scan(step, 0.0, streams, reverse=reverse)[0]


def test_two_stacks():
    """(1, 2) The loop that reads them takes them out of a row."""

    def program(xs):
        def step(c, row):
            s, t = row
            return c * s + t, None

        _, ys = stacks(xs, jnp.sin, jnp.tanh)
        return lax.scan(step, 1.0, ys, reverse=True)[0]

    check_rewrite(
        JOIN,
        program,
        "f32[8]",
        diff="""
          fn (xs:f32[8]) {
        -   c:f32[], ys:f32[8], ys1:f32[8] = scan[8] carry(c=0.0) xs(x=xs) {
        +   c:f32[], ys2:f32[8,2] = scan[8] carry(c=0.0) xs(x=xs) {
              c1:f32[] = convert_element_type c
              a:f32[] = add c1 x
              s:f32[] = sin x
              t:f32[] = tanh x
        +     b:f32[1] = broadcast_in_dim s
        +     b1:f32[1] = broadcast_in_dim t
        +     c2:f32[2] = concatenate[dimension=0] b b1
        -     yield carry(a) ys(s, t)
        +     yield carry(a) ys(c2)
            }
        -   c1:f32[] = scan[8, reverse] carry(c=1.0) xs(x=ys, x1=ys1) {
        +   c1:f32[] = scan[8, reverse] carry(c=1.0) xs(row=ys2) {
        +     s1:f32[1] = slice[:1] row
        +     s2:f32[] = squeeze s1
        +     s3:f32[1] = slice[1:] row
        +     s4:f32[] = squeeze s3
              c1:f32[] = convert_element_type c
        -     m:f32[] = mul c1 x
        +     m:f32[] = mul c1 s2
        -     a:f32[] = add m x1
        +     a:f32[] = add m s4
              yield carry(a)
            }
            return c1
          }
        """,
    )


def test_several_readers_and_other_stacks():
    """(2) Each reader takes the row; what is read otherwise stays."""

    def program(xs):
        _, (a, b, c) = stacks(xs, jnp.sin, jnp.tanh, jnp.exp)
        return total((a, b)), total((b, a, b), reverse=True), c

    graph = alone(JOIN, program, "f32[8]", fires=True)
    made, *readers = (op for op in graph.body.ops if isinstance(op, Scan))
    assert [stack.result.shape for stack in made.stacks] == [(8,), (8, 2)]
    assert [len(reader.streams) for reader in readers] == [1, 1]


def test_readers_inside_of_loops_and_branches():
    """(2) Wherever they are."""

    def program(xs, p):
        _, (a, b) = stacks(xs, jnp.sin, jnp.tanh)
        step = lambda c, _: (c + lax.cond(p, total, lambda s: total(s) + 1, (a, b)), None)
        return lax.scan(step, 0.0, length=3)[0]

    alone(JOIN, program, "f32[8]", "bool[]", fires=True)


def test_types_are_told_apart():
    """(1) Integers are no bools."""

    def program(xs):
        _, ys = stacks(xs, jnp.int32, lambda x: jnp.int32(x) * 3, lambda x: x > 1)
        step = lambda c, row: (jnp.where(row[2], c + row[0], row[1]), None)
        return lax.scan(step, 0, ys)[0]

    graph = alone(JOIN, program, "f32[8]", fires=True)
    made = next(op for op in graph.body.ops if isinstance(op, Scan))
    assert sorted(stack.result.shape for stack in made.stacks) == [(8,), (8, 2)]


@pytest.mark.parametrize("length", [0, 1])
def test_short_loops(length):
    alone(JOIN, lambda xs: total(stacks(xs, jnp.sin, jnp.tanh)[1]), f"f32[{length}]", fires=True)


def test_weak_types_and_keys_stay():
    """(1) A row would not give them back."""

    def weak(xs):
        _, ys = lax.scan(lambda c, x: (c + 1.0, (c, c * 2.0)), 0.0, xs)
        return lax.scan(lambda c, row: (c + row[0] * row[1], None), 0.0, ys)[0]

    def keys(xs):
        def step(key, x):
            one, other = jax.random.split(key)
            return one, (one, other)

        _, ys = lax.scan(step, jax.random.key(0), xs)
        add = lambda c, row: (c + sum(map(jax.random.uniform, row)), None)
        return lax.scan(add, 0.0, ys)[0]

    def packed(xs):
        stack = lambda c, x: (c, (x.astype(jnp.int4), (x * 2).astype(jnp.int4)))
        _, ys = lax.scan(stack, 0.0, xs)
        return lax.scan(lambda c, row: (c + (row[0] * row[1]).astype(c.dtype), None), 0.0, ys)[0]

    for program in (weak, keys, packed):
        alone(JOIN, program, "f32[8]", fires=False)


def test_rows_of_a_batch_stay():
    """(1) They are no scalars."""
    program = jax.vmap(lambda xs: total(stacks(xs, jnp.sin, jnp.tanh)[1]))
    alone(JOIN, program, "f32[3,8]", fires=False)


def test_stacks_that_are_returned():
    """(2) The caller wants each of them."""

    def program(xs):
        _, ys = stacks(xs, jnp.sin, jnp.tanh)
        return total(ys), ys

    check_refuses(JOIN, program, "f32[8]", because="yield reads scan whole")


def test_stacks_that_another_loop_reads_whole():
    """(2) As what it starts from."""

    def program(xs):
        _, ys = stacks(xs, jnp.sin, jnp.tanh)
        return lax.scan(lambda c, row: ((c[0] * 2, c[1] + row[0]), None), ys, ys)[0]

    check_refuses(JOIN, program, "f32[8]", because="scan reads scan whole")


@pytest.mark.parametrize(("pointers", "fires"), [(2, True), (3, False)])
def test_few_stacks_stay(pointers, fires):
    """Cost: nothing is gained."""
    program = lambda xs: total(stacks(xs, jnp.sin, jnp.tanh)[1])
    with using(CostModel().but(pointers=pointers)):
        alone(JOIN, program, "f32[8]", fires=fires)


def test_before_xla_compiled_such_loops_whole(monkeypatch):
    """Cost: each op of the loop would be called by itself."""
    monkeypatch.setattr(compat_devices, "COMPILES_LOOPS_WHOLE", False)
    program = lambda xs: total(stacks(xs, jnp.sin, jnp.tanh)[1])
    check_refuses(JOIN, program, "f32[8]", because="runs a loop that reads rows op by op")


def test_only_when_nothing_differentiates_any_more():
    """(3) A transpose would make a row for each element."""
    jaxpr = traced(lambda xs: total(stacks(xs, jnp.sin, jnp.tanh)[1]), "f32[8]")
    assert not resolve([JOIN]).run(jaxpr, "differentiable").changed
    assert resolve([JOIN]).run(jaxpr, "final").changed


def test_while_it_may_be_differentiated():
    """(3) Its transpose would have scalars to join, too."""

    def program(xs):
        _, ys = stacks(xs, jnp.sin, jnp.tanh)
        return total(ys)

    alone(JOIN, program, "f32[8]", fires=False, phase="differentiable")
