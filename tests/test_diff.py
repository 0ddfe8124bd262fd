"""The gutter diff of two graphs, and the figures beneath it."""

import re
from io import StringIO
from textwrap import dedent

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from rich.console import Console

from jaxpr_opt.insight.summary import summarize
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.text import to_text
from jaxpr_opt.reports.diff import diff_graphs
from jaxpr_opt.reports.screen import Screen
from jaxpr_opt.reports.unified import Unified
from tests.graphs import graph_of
from tests.programs import PROGRAMS


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
    diff = diff_graphs(
        graph_of(loop_with_sine_inside, *LOOP), graph_of(loop_with_sine_outside, *LOOP)
    )
    assert all(len(line) <= 60 for line in diff.to_text(60).splitlines())
    joined = " ".join(line[2:].strip() for line in diff.to_text(60).splitlines())
    assert joined == " ".join(line[2:].strip() for line in diff.to_text().splitlines())


def test_rich_shows_the_same_lines_in_colour():
    diff = diff_graphs(
        graph_of(loop_with_sine_inside, *LOOP), graph_of(loop_with_sine_outside, *LOOP)
    )
    console = Console(width=60, record=True, file=StringIO(), force_terminal=True)
    console.print(diff)
    coloured = console.export_text(styles=True, clear=False)
    assert "\x1b[31m-     s:f32[3] = sin w" in coloured
    assert console.export_text().splitlines() == diff.to_text(60).splitlines()


# -- a screen of it ------------------------------------------------------------------------------


def sums(x):
    s = jnp.sin(x)
    return jnp.cos(s.sum() * s)


def maxima(x):
    s = jnp.sin(x)
    return jnp.cos(s.max() * s)


def in_place(before, after, *args):
    return diff_graphs(graph_of(before, *args), graph_of(after, *args), in_place=True)


def test_what_reads_a_replaced_value_is_no_change():
    assert dedent(in_place(sums, maxima, "f32[3]").to_text()) == dedent(
        """\
          fn (x:f32[3]) {
            s:f32[3] = sin x
        -   r:f32[] = reduce_sum[axes=(0,)] s
        +   r:f32[] = reduce_max[axes=(0,)] s
            m:f32[3] = mul r s
            c:f32[3] = cos m
            return c
          }"""
    )


def test_a_value_that_moved_keeps_its_name_for_itself():
    def first(x):
        return jnp.tanh(jnp.sin(x)) + jnp.exp(x)

    def second(x):
        return jnp.tanh(jnp.cos(x)) + jnp.exp(jnp.sin(x))

    text = in_place(first, second, "f32[3]").to_text()
    after = [line[2:] for line in text.splitlines() if line[0] in "+ "]
    names = [line.split(":")[0].strip() for line in after if " = " in line]
    assert len(set(names)) == len(names), text


def shown(diff, *args, width=70):
    console = Console(width=width, file=StringIO())
    console.print(Unified(diff, *args))
    return console.file.getvalue()


def long(last):
    def fun(x):
        for _ in range(20):
            x = jnp.sin(x)
        x = lax.fori_loop(0, 5, lambda _, y: last(jnp.tanh(y) + 1), x)
        for _ in range(20):
            x = jnp.sin(x)
        return x

    return fun


def test_equal_lines_far_from_a_change_are_counted():
    diff = in_place(long(jnp.cos), long(jnp.exp), "f32[3]")
    text = shown(diff, 1)
    lines = text.splitlines()
    assert len(lines) < 12
    assert re.fullmatch(r"  fn \(x:f32\[3\]\) {", lines[0])
    assert re.fullmatch(r" +\.\.\. \d+ lines as before", lines[1])
    assert "scan[5]" in lines[2]  # which the change is in
    (old,), (new,) = ([line for line in lines if line[0] == gutter] for gutter in "-+")
    assert "cos" in old and "exp" in new
    assert re.search(r"  # test_diff.py:\d+$", old)
    counted = sum(int(number) for number in re.findall(r"\.\.\. (\d+) lines", text))
    assert counted + len(lines) - text.count("... ") == len(diff.lines)
    assert [line.split("  #")[0] for line in shown(diff, 10**6).splitlines()] == [
        line.split("  #")[0] for line in diff.to_text(70).splitlines()
    ]


def test_nothing_changed_is_one_line_unless_it_is_short():
    assert shown(in_place(long(jnp.cos), long(jnp.cos), "f32[3]"), 3).count("\n") == 1
    same = in_place(sums, sums, "f32[3]")
    assert shown(same, 3) == same.to_text() + "\n"


def test_the_pass_that_made_a_change_is_named():
    diff = in_place(sums, maxima, "f32[3]")
    line = next(line for line in diff.lines if line.gutter == "-")
    text = shown(diff, 0, {line.frame: ["narrow-reads"]})
    assert text.count("narrow-reads") == 1
    assert max(map(len, text.splitlines())) <= 70
    assert "test_diff.py" not in shown(diff, 0, {line.frame: ["narrow-reads"]}, width=45)


# -- a program of any length ---------------------------------------------------------------------


def on_screen(diff, width=80, **options):
    console = Console(width=width, file=StringIO())
    console.print(Screen(diff, **options))
    return console.file.getvalue()


def layers(count, last):
    def fun(x, *ws):
        for w in ws:
            for _ in range(9):
                x = jnp.sin(x) @ w
            x = last(x) + 1
        for _ in range(9):
            x = jnp.sin(x) @ ws[0]
        return x

    return fun, *["f32[3,3]"] * (count + 1)


def test_a_change_in_each_layer_is_shown_once():
    before, *args = layers(12, jnp.tanh)
    lines = on_screen(in_place(before, layers(12, jnp.cos)[0], *args)).splitlines()
    ops = {gutter: [line.split(" = ")[1] for line in lines if line[0] == gutter] for gutter in "-+"}
    assert [each.split("  #")[0] for each in ops["-"]] == ["tanh d8"]
    assert ops["+"] == ["cos d8"]
    assert [line.strip() for line in lines if line.endswith("places")] == [
        "... and so in 11 more places"
    ]
    assert sum(bool(re.fullmatch(r" +\.\.\. \d+ lines as before or above", s)) for s in lines) == 1
    assert lines[0].startswith("  fn (x:f32[3,3], ")
    assert lines[0].endswith(" ... ws_11:f32[3,3]) {")


def test_other_changes_of_the_same_shape_are_shown():
    """`tanh` and `cos` are values of the program, too: what stands for an op is no name."""

    def program(second):
        def fun(tanh, cos):
            x = jnp.sin(tanh) + cos
            for last in (jnp.tanh, second):
                for _ in range(9):
                    x = jnp.sin(x)
                x = last(x)
            return x

        return fun

    diff = in_place(program(jnp.cos), program(jnp.exp), "f32[3]", "f32[3]")
    plain = in_place(program(jnp.tanh), lambda x, y: x + y, "f32[3]", "f32[3]")
    assert "more place" not in on_screen(diff) + on_screen(plain)


def test_what_finds_no_room_is_counted_by_pass_and_line():
    def program(by):
        def fun(x):
            for n in range(20):
                x = jnp.sin(x * (n + by))
            return x

        return fun

    diff = in_place(program(0.5), program(0.25), "f32[3]")
    frame = next(line.frame for line in diff.lines if line.gutter == "-")
    assert on_screen(diff, height=100).count("\n") == 63
    text = on_screen(diff, height=20, doers={frame: ["narrow-reads"]}).splitlines()
    assert len(text) == 20
    assert text[-2:] == [
        "  ... 40 changed lines in all: -U 3 shows them, --full the program",
        f"  narrow-reads: test_diff.py:{frame[1]}",
    ]
    assert on_screen(diff, height=20).splitlines()[-1] == f"  changed at: test_diff.py:{frame[1]}"


def test_a_loop_that_carries_less_shows_what_it_carries_less():
    def loop(keep):
        def fun(xs):
            def step(c, x):
                return [a * x for a in c], x

            carry = [xs[0] + n for n in range(12) if keep or n != 6]
            return lax.scan(step, carry, xs)

        return fun

    lines = on_screen(in_place(loop(True), loop(False), "f32[8]"), height=30).splitlines()
    old, new = (
        next(n for n, line in enumerate(lines) if line[0] == gutter and "c:f32" in line)
        for gutter in "-+"
    )
    assert old < new and "c6:f32[]" in lines[old] and "c6" not in lines[new]
    assert "... " in lines[new] and "scan[8]" in lines[new] + lines[new + 1]
