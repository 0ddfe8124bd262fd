"""The gutter diff of two graphs, and the figures beneath it."""

from io import StringIO
from textwrap import dedent

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from rich.console import Console

from jaxpr_opt.analysis.cost import UNKNOWN, Cost, cost
from jaxpr_opt.analysis.liveness import last_uses, peak_bytes
from jaxpr_opt.analysis.summary import residual_bytes, summarize
from jaxpr_opt.diff import diff_graphs
from jaxpr_opt.importer import import_jaxpr
from jaxpr_opt.testing import traced
from jaxpr_opt.text import to_text
from tests.programs import PROGRAMS, XS, X, nested_scan, shard_map


def graph_of(fun, *args):
    return import_jaxpr(traced(fun, *args))


def check(expected, before, after, *args):
    text = diff_graphs(graph_of(before, *args), graph_of(after, *args)).to_text()
    assert dedent(text) == dedent(expected).strip("\n"), f"the diff is\n\n{text}\n"


def loop_with_sine_inside(w, xs, ct):
    def step(c, x):
        s = jnp.sin(w)
        return c + x * s, s

    h, r = lax.scan(step, jnp.zeros(3), xs)
    return h, lax.scan(lambda c, s: (c * s, None), ct, r, reverse=True)[0]


def loop_with_sine_outside(w, xs, ct):
    zeros, s = jnp.zeros(3), jnp.sin(w)
    h, _ = lax.scan(lambda c, x: (c + x * s, None), zeros, xs)
    return h, lax.scan(lambda c, _: (c * s, None), ct, None, length=8, reverse=True)[0]


LOOP = ("f32[3]", "f32[8,3]", "f32[3]")


def test_what_moved_keeps_its_name():
    check(
        """
          fn (w:f32[3], xs:f32[8,3], ct:f32[3]) {
            b:f32[3] = broadcast_in_dim 0.0
        +   s:f32[3] = sin w
        -   c:f32[3], ys:f32[8,3] = scan[8] carry(c=b) xs(x=xs) {
        +   c:f32[3] = scan[8] carry(c=b) xs(x=xs) {
        -     s:f32[3] = sin w
              m:f32[3] = mul x s
              a:f32[3] = add c m
        -     yield carry(a) ys(s)
        +     yield carry(a)
            }
        -   c1:f32[3] = scan[8, reverse] carry(c=ct) xs(x=ys) {
        +   c1:f32[3] = scan[8, reverse] carry(c=ct) {
        -     m:f32[3] = mul c x
        +     m:f32[3] = mul c s
              yield carry(m)
            }
            return c, c1
          }
        """,
        loop_with_sine_inside,
        loop_with_sine_outside,
        *LOOP,
    )


def test_names_play_no_part():
    def renamed(a, b, c):
        return loop_with_sine_inside(a, b, c)

    body = diff_graphs(graph_of(loop_with_sine_inside, *LOOP), graph_of(renamed, *LOOP)).lines[1:]
    assert {line.gutter for line in body} == {" "}


def twice(t):
    return t * t


def test_what_depends_on_an_edit_is_not_an_edit():
    check(
        """
          fn (x:f32[3]) {
        -   s:f32[3] = sin x
        +   c:f32[3] = cos x
        -   e:f32[3] = exp s
        +   e:f32[3] = exp c
            t:f32[3] = tan e
            m:f32[3] = mul t t
            return m
          }
        """,
        lambda x: twice(jnp.tan(jnp.exp(jnp.sin(x)))),
        lambda x: twice(jnp.tan(jnp.exp(jnp.cos(x)))),
        "f32[3]",
    )


def test_branches_and_whiles_are_compared_inside():
    def before(p, x):
        y = lax.while_loop(lambda c: c.sum() < 3.0, lambda c: c + x * 2.0, x)
        return lax.cond(p, lambda: jnp.sin(y), lambda: y)

    def after(p, x):
        d = x * 2.0
        y = lax.while_loop(lambda c: c.sum() < 3.0, lambda c: c + d, x)
        return lax.cond(p, lambda: jnp.cos(y), lambda: y)

    check(
        """
          fn (p:bool[], x:f32[3]) {
        +   m:f32[3] = mul x 2.0
            c:f32[3] = while carry(c=x) {
              r:f32[] = reduce_sum[axes=(0,)] c
              l:bool[] = lt r 3.0
              yield l
            } do {
        -     m:f32[3] = mul x 2.0
              a:f32[3] = add c m
              yield carry(a)
            }
            c1:i32[] = convert_element_type p
            r:f32[3] = cond p {
        -     s:f32[3] = sin c
        +     c2:f32[3] = cos c
        -     yield s
        +     yield c2
            } else {
              yield c
            }
            return r
          }
        """,
        before, after, "bool[]", "f32[3]",
    )  # fmt: skip


def test_a_whole_loop_is_gone():
    def before(x):
        return lax.scan(lambda c, _: (c * 2.0, None), x, None, length=3)[0]

    check(
        """
          fn (x:f32[]) {
        -   c:f32[] = scan[3] carry(c=x) {
        -     m:f32[] = mul c 2.0
        -     yield carry(m)
        -   }
        +   m1:f32[] = mul x 8.0
        -   return c
        +   return m1
          }
        """,
        before,
        lambda x: x * 8.0,
        "f32[]",
    )


def test_a_dropped_carry_in_the_middle():
    def loop(keep):
        def fun(x, y, z):
            carry = (x, y, z) if keep else (x, z)
            return lax.scan(lambda c, _: (tuple(a * 2.0 for a in c), None), carry, None, length=3)

        return fun

    lines = diff_graphs(graph_of(loop(True), *["f32[]"] * 3), graph_of(loop(False), *["f32[]"] * 3))
    assert [str(line.text) for line in lines.lines if line.gutter == "+"] == [
        "c:f32[], c2:f32[] = scan[3] carry(c=x, c2=z) {",
        "yield carry(m, m2)",
        "return c, c2",
    ]


@pytest.mark.parametrize(("fun", "args"), PROGRAMS)
def test_a_program_does_not_differ_from_itself(fun, args):
    graph, again = (import_jaxpr(jax.make_jaxpr(fun)(*args)) for _ in range(2))
    diff = diff_graphs(graph, again)
    assert not diff.changed
    assert dedent(diff.to_text()) == to_text(graph)
    assert diff.before == diff.after == summarize(graph)


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_both_sides_can_be_read_off(ours, theirs):
    """Without `+` the diff is the text before; without `-` it has the ops of the text after."""
    funs = [jnp.sin, jnp.cos, lambda x: x * 2.0, lambda x: x + x]

    def program(choices):
        def fun(x):
            for choice in choices:
                x = funs[choice](x)
            return x

        return graph_of(fun, "f32[3]")

    before, after = program(ours), program(theirs)
    diff = diff_graphs(before, after)
    old = [f"{'  ' * line.depth}{line.text}" for line in diff.lines if line.gutter != "+"]
    new = [line.text.split(" = ")[-1].split()[0] for line in diff.lines if line.gutter != "-"]
    assert "\n".join(old) == to_text(before)
    assert new == [text.split(" = ")[-1].split()[0] for text in to_text(after).splitlines()]
    assert diff.changed == (ours != theirs)


def test_long_lines_are_continued():
    diff = diff_graphs(graph_of(loop_with_sine_inside, *LOOP), graph_of(loop_with_sine_outside, *LOOP))
    assert all(len(line) <= 60 for line in diff.to_text(60).splitlines())
    joined = " ".join(line[2:].strip() for line in diff.to_text(60).splitlines())
    assert joined == " ".join(line[2:].strip() for line in diff.to_text().splitlines())


def test_it_renders_with_a_table():
    diff = diff_graphs(graph_of(loop_with_sine_inside, *LOOP), graph_of(loop_with_sine_outside, *LOOP))
    console = Console(width=100, record=True, file=StringIO())
    console.print(diff)
    text = console.export_text()
    assert "-     s:f32[3] = sin w" in text
    for row in (("loop residuals", "96 bytes", "0 bytes"), ("FLOPs", "96", "75")):
        (line,) = (line for line in text.splitlines() if row[0] in line)
        assert all(cell in line for cell in row)


# -- the figures ---------------------------------------------------------------------------------------


def flops(fun, *args):
    return cost(graph_of(fun, *args).body).flops


@pytest.mark.parametrize(
    ("fun", "args", "expected"),
    [
        (lambda x, w: x @ w, ("f32[3,4]", "f32[4,5]"), 2 * 3 * 4 * 5),
        (lambda x: jnp.einsum("bij,bkj->bik", x, x), ("f32[2,3,4]",), 2 * 2 * 3 * 4 * 3),
        (lambda x: jnp.sin(x) + 1, ("f32[5]",), 10),
        (lambda x: x.T.reshape(-1)[:2], ("f32[3,4]",), 0),
        (lambda x: x.sum(), ("f32[3,4]",), 12),
        (jax.nn.relu, ("f32[4]",), 4),
        (lambda x: lax.conv(x, x[:, :, :2, :2], (1, 1), "VALID"), ("f32[1,1,4,4]",), 2 * 9 * 4),
        (lambda p, x: lax.cond(p, lambda: x * x * x, lambda: x), ("bool[]", "f32[3]"), 6),
        (jax.checkpoint(jnp.sin), ("f32[3]",), 3),
        (lambda x: jax.jit(jnp.sin, donate_argnums=0)(x), ("f32[3]",), 3),
        (lambda x: lax.while_loop(lambda c: c < 3, lambda c: c + 1, x), ("f32[]",), None),
        (lambda x: jax.pure_callback(jnp.sin, x, x), ("f32[]",), None),
    ],
)
def test_operations_are_counted(fun, args, expected):
    assert flops(fun, *args) == expected


@pytest.mark.parametrize("length", [0, 1, 8, 1000])
def test_a_scan_costs_its_length_times_its_body(length):
    def fun(x):
        return lax.scan(lambda c, _: (c @ c, None), x, None, length=length)[0]

    graph = graph_of(fun, "f32[64,64]")
    scan = next(op for op in graph.walk() if op.name == "scan")
    assert cost(scan) == length * cost(scan.body)
    assert cost(scan).flops == length * 2 * 64**3


costs = st.builds(
    Cost, flops=st.none() | st.integers(0, 9), bytes=st.none() | st.integers(0, 9)
)  # fmt: skip


@given(costs, costs, costs, st.integers(0, 5), st.integers(0, 5))
def test_costs_add_and_multiply(a, b, c, n, m):
    assert a + b == b + a and (a + b) + c == a + (b + c) and a + Cost() == a
    assert n * (a + b) == n * a + n * b and (n * m) * a == n * (m * a)
    assert n * a + m * a == (n + m) * a
    assert a | b == b | a and a | a == a
    assert 2 * a + UNKNOWN == UNKNOWN and 0 * UNKNOWN == Cost()


def test_costs_take_names_only():
    with pytest.raises(TypeError):
        Cost(1, 2)
    with pytest.raises(AttributeError):
        Cost().flops = 1


def test_residuals_are_stacks_that_another_loop_reads():
    loss = lambda x, xs: lax.scan(lambda c, r: (jnp.tanh(c * r), None), x, xs)[0].sum()
    graph = graph_of(jax.grad(loss), "f32[3]", "f32[8,3]")
    scan = next(op for op in graph.walk() if op.name == "scan")
    assert residual_bytes(graph) == sum(y.result.nbytes for y in scan.stacks) > 0
    assert residual_bytes(graph_of(loss, "f32[3]", "f32[8,3]")) == 0


def test_residuals_of_nested_loops_count_once():
    graph = graph_of(nested_scan, X, XS)
    outer = next(op for op in graph.walk() if op.name == "scan")
    assert residual_bytes(graph) == outer.stacks[0].result.nbytes == 8 * 2 * 3 * 4


@pytest.mark.parametrize(
    ("fun", "expected"),
    [
        (lambda x: x, 400),
        (lambda x: jnp.sin(x), 800),
        (lambda x: jnp.sin(jnp.sin(jnp.sin(x))), 1200),
        (lambda x: x.sum(), 404),
        (lambda x: x + jnp.zeros(100), 800),
        (lambda x: lax.scan(lambda c, _: (c * 2, None), x, None, length=9)[0], 1200),
        (lambda x: lax.scan(lambda c, _: (c * 2, c), x, None, length=9), 4800),
        (lambda x: (x * 2).at[0].set(1.0), 800),
    ],
)
def test_peak_memory(fun, expected):
    """Of 100 floats: the argument stays, an operand lives until its last reader has its result."""
    assert peak_bytes(graph_of(fun, "f32[100]")) == pytest.approx(expected, abs=16)


def test_last_uses_look_into_regions():
    graph = graph_of(lambda x: lax.cond(True, lambda: jnp.sin(x), lambda: x), "f32[3]")
    cond = next(op for op in graph.walk() if op.name == "cond")
    assert last_uses(graph.body)[graph.inputs[0]] is cond


def test_a_mesh_multiplies_the_cost():
    assert flops(shard_map, X) is None or flops(shard_map, X) > 0
