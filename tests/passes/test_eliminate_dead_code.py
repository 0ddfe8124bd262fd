"""What nobody reads goes, in every kind of region; what has effects stays."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from jaxpr_opt.passes.laws.eliminate_dead_code import EliminateDeadCode
from jaxpr_opt.testing import check_rewrite
from tests.loops import alone

DCE = EliminateDeadCode()


def test_dead_carry_stream_and_stack():
    """(2) A carry that feeds only itself is dead with everything that it alone needs."""

    def program(c, d, xs, ys):
        def step(carry, row):
            c, d = carry
            x, y = row
            return (c + x, d * jnp.sin(y)), jnp.cos(d)

        return lax.scan(step, (c, d), (xs, ys))[0][0]

    check_rewrite(
        DCE,
        program,
        "f32[3]",
        "f32[3]",
        "f32[8,3]",
        "f32[8,3]",
        saves_bytes=0,
        diff="""
          fn (c:f32[3], d:f32[3], xs:f32[8,3], ys:f32[8,3]) {
        -   c1:f32[3], c2:f32[3], ys1:f32[8,3] = scan[8] carry(c=c, c1=d) xs(x=xs, x1=ys) {
        +   c1:f32[3] = scan[8] carry(c=c) xs(x=xs) {
              a:f32[3] = add c x
        -     s:f32[3] = sin x1
        -     m:f32[3] = mul c1 s
        -     c2:f32[3] = cos c1
        -     yield carry(a, m) ys(c2)
        +     yield carry(a)
            }
            return c1
          }
        """,
    )


def test_carries_that_feed_each_other_only():
    """(2) A cycle of carries is dead as a whole; one that reaches the result is not."""

    def program(a, b, c, d):
        def step(carry, _):
            a, b, c, d = carry
            return (b, jnp.sin(a), d, c + 1.0), None

        return lax.scan(step, (a, b, c, d), None, length=5)[0][2]

    check_rewrite(
        DCE,
        program,
        "f32[3]",
        "f32[3]",
        "f32[3]",
        "f32[3]",
        diff="""
          fn (a:f32[3], b:f32[3], c:f32[3], d:f32[3]) {
        -   c1:f32[3], c2:f32[3], c3:f32[3], c4:f32[3] = scan[5] carry(c=a, c1=b, c2=c, c3=d) {
        +   c3:f32[3], c4:f32[3] = scan[5] carry(c2=c, c3=d) {
        -     s:f32[3] = sin c
              a:f32[3] = add c2 1.0
        -     yield carry(c1, s, c3, a)
        +     yield carry(c3, a)
            }
            return c3
          }
        """,
    )


def test_dead_carry_of_a_while():
    """(3) The counter is read by the predicate only, and stays."""

    def program(x, n):
        def body(c):
            return c[0] + 1, c[1] * 2.0, c[2] + c[1]

        return lax.while_loop(lambda c: c[0] < n, body, (0, x, x))[1]

    check_rewrite(
        DCE,
        program,
        "f32[3]",
        "i32[]",
        grad=False,
        diff="""
          fn (x:f32[3], n:i32[]) {
        -   c:i32[], c1:f32[3], c2:f32[3] = while carry(c=0, c1=x, c2=x) {
        +   c:i32[], c1:f32[3] = while carry(c=0, c1=x) {
              c3:i32[] = convert_element_type c
              l:bool[] = lt c3 n
              yield l
            } do {
              a:i32[] = add c 1
              m:f32[3] = mul c1 2.0
        -     a1:f32[3] = add c2 c1
        -     yield carry(a, m, a1)
        +     yield carry(a, m)
            }
            return c1
          }
        """,
    )


def test_dead_result_of_a_switch():
    """Its ops leave the branches."""

    def program(i, x):
        branches = [lambda: (x + 1.0, jnp.sin(x)), lambda: (x, jnp.cos(x)), lambda: (x * x, x)]
        return lax.switch(i, branches)[0]

    check_rewrite(
        DCE,
        program,
        "i32[]",
        "f32[3]",
        diff="""
          fn (i:i32[], x:f32[3]) {
            c:i32[] = clamp 0 i 2
        -   r:f32[3], r1:f32[3] = switch c case 0 {
        +   r:f32[3] = switch c case 0 {
              a:f32[3] = add x 1.0
        -     s:f32[3] = sin x
        -     yield a, s
        +     yield a
            } case 1 {
        -     c:f32[3] = cos x
        -     yield x, c
        +     yield x
            } case 2 {
              m:f32[3] = mul x x
        -     yield m, x
        +     yield m
            }
            return r
          }
        """,
    )


def test_dead_result_of_a_remat():
    """As of any other region."""

    def program(x):
        return jax.checkpoint(lambda x: (jnp.sin(x), jnp.cos(x) * 2.0))(x)[0]

    check_rewrite(
        DCE,
        program,
        "f32[3]",
        diff="""
          fn (x:f32[3]) {
        -   r:f32[3], r1:f32[3] = remat {
        +   r:f32[3] = remat {
              s:f32[3] = sin x
        -     c:f32[3] = cos x
        -     m:f32[3] = mul c 2.0
        -     yield s, m
        +     yield s
            }
            return r
          }
        """,
    )


def test_operands_of_a_call_stay():
    """(4) It takes what it does not read, too."""
    call = jax.jit(lambda x, y: 2.0 * x, donate_argnums=0, keep_unused=True)

    def program(x):
        jnp.cos(x)
        return call(x + 1.0, x * 3.0)

    alone(DCE, program, "f32[3]", fires=True)


def test_dead_loops_go():
    """Nobody knows whether the first one ends."""

    def program(x):
        lax.while_loop(lambda c: c < 9.0, lambda c: c + 1.0, jnp.abs(x[0]))
        lax.scan(lambda c, _: (jnp.sin(c), c), x, None, length=8)
        return x * 2.0

    check_rewrite(
        DCE,
        program,
        "f32[3]",
        diff="""
          fn (x:f32[3]) {
        -   s:f32[1] = slice[:1] x
        -   s1:f32[] = squeeze s
        -   a:f32[] = abs s1
        -   c:f32[] = while carry(c=a) {
        -     l:bool[] = lt c 9.0
        -     yield l
        -   } do {
        -     a:f32[] = add c 1.0
        -     yield carry(a)
        -   }
        -   c1:f32[3], ys:f32[8,3] = scan[8] carry(c=x) {
        -     s:f32[3] = sin c
        -     yield carry(s) ys(c)
        -   }
            m:f32[3] = mul x 2.0
            return m
          }
        """,
    )


def test_effects_stay_with_what_they_need():
    """(1) The print in the loop keeps the loop, the carry it prints, and the branch it is in."""

    def program(x, i):
        def step(c, _):
            show = functools.partial(jax.debug.callback, lambda _: None, c[0])
            lax.switch(i, [show, lambda: None, lambda: None])
            return (jnp.sin(c[0]), jnp.cos(c[1])), c[1]

        lax.scan(step, (x, x), None, length=8)
        return x

    check_rewrite(
        DCE,
        program,
        "f32[]",
        "i32[]",
        grad=False,
        diff="""
          fn (x:f32[], i:i32[]) {
        -   c:f32[], c1:f32[], ys:f32[8] = scan[8] carry(c=x, c1=x) {
        +   c:f32[] = scan[8] carry(c=x) {
              c2:i32[] = clamp 0 i 2
              switch c2 case 0 {
                debug_callback[callback=_flat_callback, effect=Debug] c
                yield
              } case 1 {
                yield
              } case 2 {
                yield
              }
              s:f32[] = sin c
        -     c3:f32[] = cos c1
        -     yield carry(s, c3) ys(c1)
        +     yield carry(s)
            }
            return x
          }
        """,
    )


def test_call_keeps_its_signature():
    """(4) A donated argument stays an argument."""

    @jax.jit
    def plain(x, y):
        return jnp.sin(x), y * 2.0

    donating = jax.jit(plain, donate_argnums=1)

    def program(x, y):
        return donating(x, y)[0]

    check_rewrite(
        DCE,
        program,
        "f32[3]",
        "f32[3]",
        diff="""
        fn (x:f32[3], y:f32[3]) {
          r:f32[3], r1:f32[3] = call jit[name=plain, donated=(1)] (x=x, x1=y) {
            s:f32[3] = sin x
            m:f32[3] = mul x1 2.0
            yield s, m
          }
          return r
        }
        """,
    )


def test_nothing_dead():
    """A program in which everything is read is left alone."""

    def program(x, xs):
        return lax.scan(lambda c, x: (c + x, c), x, xs)

    check_rewrite(
        DCE,
        program,
        "f32[3]",
        "f32[8,3]",
        diff="""
        fn (x:f32[3], xs:f32[8,3]) {
          c:f32[3], ys:f32[8,3] = scan[8] carry(c=x) xs(x=xs) {
            a:f32[3] = add c x
            yield carry(a) ys(c)
          }
          return c, ys
        }
        """,
    )
