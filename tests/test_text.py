"""What the printed form looks like; the same on every JAX."""

from textwrap import dedent

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt.bridge.dtypes import type_text
from jaxpr_opt.ir.graph import Constant
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.text import Names, to_text
from jaxpr_opt.testing import traced
from jaxpr_opt.testing.sampling import parse_type
from tests.programs import PROGRAMS


def check(expected, fun, *args, phase="differentiable"):
    text = to_text(import_jaxpr(traced(fun, *args), phase))
    assert text == dedent(expected).strip(), f"the text is\n\n{text}\n"


def test_a_scan_names_its_roles():
    def fun(w, xs):
        def step(c, x):
            s = jnp.sin(w)
            return c + x * s, s

        return lax.scan(step, jnp.zeros(3), xs, reverse=True)

    check(
        """
        fn (w:f32[3], xs:f32[8,3]) {
          b:f32[3] = broadcast_in_dim 0.0
          c:f32[3], ys:f32[8,3] = scan[8, reverse] carry(c=b) xs(x=xs) {
            s:f32[3] = sin w
            m:f32[3] = mul x s
            a:f32[3] = add c m
            yield carry(a) ys(s)
          }
          return c, ys
        }
        """,
        fun, "f32[3]", "f32[8,3]",
    )  # fmt: skip


def test_a_while_has_a_predicate_and_a_body():
    check(
        """
        fn (x:f32[3], n:i32[]) {
          c:f32[3], c1:i32[] = while carry(c=x, c1=n) {
            g:bool[] = gt c1 0
            yield g
          } do {
            m:f32[3] = mul c 2.0
            s:i32[] = sub c1 1
            yield carry(m, s)
          }
          return c, c1
        }
        """,
        lambda x, n: lax.while_loop(lambda c: c[1] > 0, lambda c: (c[0] * 2, c[1] - 1), (x, n)),
        "f32[3]", "i32[]",
    )  # fmt: skip


def test_a_cond_reads_as_an_if():
    check(
        """
        fn (p:bool[], x:f32[3]) {
          c:i32[] = convert_element_type p
          r:f32[3], r1:f32[3] = cond p {
            s:f32[3] = sin x
            yield s, x
          } else {
            c:f32[3] = cos x
            yield x, c
          }
          return r, r1
        }
        """,
        lambda p, x: lax.cond(p, lambda: (jnp.sin(x), x), lambda: (x, jnp.cos(x))),
        "bool[]", "f32[3]",
    )  # fmt: skip


def test_a_switch_counts_its_cases():
    check(
        """
        fn (i:i32[], x:f32[3]) {
          c:i32[] = clamp 0 i 2
          r:f32[3] = switch c case 0 {
            s:f32[3] = sin x
            yield s
          } case 1 {
            yield x
          } case 2 {
            n:f32[3] = neg x
            yield n
          }
          return r
        }
        """,
        lambda i, x: lax.switch(i, [lambda: jnp.sin(x), lambda: x, lambda: -x]),
        "i32[]", "f32[3]",
    )  # fmt: skip


def test_a_remat_says_what_it_saves():
    policy = jax.checkpoint_policies.dots_saveable
    check(
        """
        fn (x:f32[3]) {
          r:f32[] = remat[policy=dots_saveable] {
            d:f32[] = dot_general x x
            s:f32[] = sin d
            yield s
          }
          return r
        }
        """,
        jax.checkpoint(lambda x: jnp.sin(x @ x), policy=policy), "f32[3]",
    )  # fmt: skip


def test_a_call_that_is_kept_says_why():
    check(
        """
        fn (x:f32[3]) {
          r:f32[3] = call jit[name=double, donated=(0)] (x=x) {
            m:f32[3] = mul x 2.0
            yield m
          }
          return r
        }
        """,
        jax.jit(double, donate_argnums=0), "f32[3]",
    )  # fmt: skip


def double(x):
    return x * 2


def test_parameters_that_say_nothing_are_left_out():
    def fun(x, w):
        a = (x @ w).T.reshape(-1)
        b = jnp.einsum("bij,bjk->bik", x[None], w[None])
        return a, b, x[1:, ::2], x.astype(jnp.bfloat16), x.sum(0), jnp.cumsum(x, 0), x[:, None]

    check(
        """
        fn (x:f32[3,4], w:f32[4,2]) {
          d:f32[3,2] = dot_general x w
          t:f32[2,3] = transpose d
          r:f32[6] = reshape t
          b:f32[1,3,4] = broadcast_in_dim x
          b1:f32[1,4,2] = broadcast_in_dim w
          d1:f32[1,3,2] = dot_general[contract=2x1, batch=0x0] b b1
          s:f32[2,2] = slice[1:, ::2] x
          c:bf16[3,4] = convert_element_type x
          r1:f32[4] = reduce_sum[axes=(0,)] x
          c1:f32[3,4] = cumsum[axis=0] x
          b2:f32[3,1,4] = broadcast_in_dim[dims=(0, 2)] x
          return r, d1, s, c, r1, c1, b2
        }
        """,
        fun, "f32[3,4]", "f32[4,2]",
    )  # fmt: skip


def test_constants_are_called_by_what_they_are():
    big, small = np.arange(12, dtype=np.float32).reshape(3, 4), np.array([1.5, 2.5], np.float32)
    check(
        """
        fn (x:f32[]) {
          m:f32[3,4] = mul x const:f32[3,4]
          m1:f32[2] = mul x [1.5, 2.5]
          m2:f32[] = mul x 0.1
          return m, m1, m2, 3
        }
        """,
        lambda x: (x * big, x * small, x * 0.1, 3),
        "f32[]",
    )


def test_opaque_ops_go_by_the_name_of_their_function():
    check(
        """
        fn (x:f32[3]) {
          c:f32[3] = custom_jvp_call[name=relu] x
          p:f32[3] = pure_callback[callback=sin] c
          r:key<fry>[] = random_seed[impl=threefry2x32] 0
          r1:u32[3] = random_bits r
          debug_print[fmt=bits {}] r1
          return p
        }
        """,
        opaque, "f32[3]",
    )  # fmt: skip


def opaque(x):
    y = jax.pure_callback(np.sin, jax.ShapeDtypeStruct((3,), jnp.float32), jax.nn.relu(x))
    jax.debug.print("bits {}", jax.random.bits(jax.random.key(0), (3,)))
    return y


def test_undefined_values_are_reported():
    def fun(p, x):
        def loss(x):
            return lax.cond(p, lambda: jnp.sin(x), lambda: x).sum()

        return jax.linearize(loss, x)[1](x)

    assert "f32[3] = undefined" in to_text(import_jaxpr(traced(fun, True, "f32[3]")))


def test_an_edit_does_not_rename_the_rest():
    def fun(x, extra):
        a = jnp.sin(x)
        if extra:
            a = jnp.sin(lax.scan(lambda c, _: (c + jnp.cos(x), None), a, None, length=2)[0])
        b = jnp.exp(x) * x
        return b + a

    def lines(extra):
        return to_text(import_jaxpr(traced(lambda x: fun(x, extra), "f32[3]"))).splitlines()

    assert [line for line in lines(True) if line not in lines(False)] == [
        "  c:f32[3] = scan[2] carry(c=s) {",
        "    c1:f32[3] = cos x",
        "    a:f32[3] = add c c1",
        "    yield carry(a)",
        "  }",
        "  s1:f32[3] = sin c",
        "  a:f32[3] = add m s1",
    ]


@pytest.mark.parametrize(("fun", "args"), PROGRAMS)
def test_names_are_unique_where_they_are_read(fun, args):
    """In every region, no two values that it defines or reads have one name."""
    graph = import_jaxpr(jax.make_jaxpr(fun)(*args))
    names = Names(graph)
    regions = [graph.body, *(region for op in graph.walk() for region in op.regions)]
    for region in regions:
        values = {*region.params, *(v for op in region.ops for v in op.results)}
        values |= {v for op in region.ops for v in op.operands if not isinstance(v, Constant)}
        values |= set(region.captures())
        assert len({names[v] for v in values}) == len(values)
    assert " at 0x" not in to_text(graph)
    assert to_text(graph) == to_text(import_jaxpr(jax.make_jaxpr(fun)(*args)))


def test_a_while_names_its_carry_apart_from_what_its_body_reads():
    """Though its predicate does not read it."""

    def program(x):
        ended = lax.while_loop(lambda c: c < 3, lambda c: c + x, x)
        return lax.while_loop(lambda c: c < 9, lambda c: c + ended, x)

    text = to_text(import_jaxpr(traced(program, "f32[]")))
    assert "lt c1 9.0" in text and "add c1 c\n" in text


@pytest.mark.parametrize(
    "text", ["f32[8,3]", "i32[]", "bool[2]", "bf16[1]", "u8[4]", "c64[2,2]", "f16[0]"]
)
def test_types_are_written_as_they_are_read(text):
    assert type_text(jax.typeof(jnp.zeros(parse_type(text).shape, parse_type(text).dtype))) == text


@pytest.mark.parametrize("text", ["", "f32", "f32[a]", "q7[3]", "f32[3", "[3]", "float[2]x"])
def test_what_is_not_a_type(text):
    with pytest.raises(ValueError, match="write it like f32"):
        parse_type(text)
