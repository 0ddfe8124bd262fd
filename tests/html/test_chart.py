"""Where things are in the picture of live memory."""

import re
from itertools import pairwise

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.html.chart import COLUMNS, SIZE, chart
from jaxpr_opt.html.hover import data
from jaxpr_opt.html.memory import _round, picture
from jaxpr_opt.insight.timeline import timeline
from tests.graphs import graph_of


def drawn(fun, *args):
    return chart(timeline(graph_of(fun, *args)))


def heights(path):
    return [int(height) for height in re.findall(r"V(-?\d+)", path)]


def rnn(length):
    def loss(w, xs):
        return lax.scan(lambda h, x: (jnp.tanh(h * w + x), None), w, xs)[0].sum()

    return jax.grad(loss), "f32[50]", f"f32[{length},50]"


def test_columns_fill_the_width_in_order():
    it = drawn(*rnn(4))
    assert [it.columns[0].left, it.columns[-1].right] == [0, pytest.approx(1)]
    assert all(a.right == pytest.approx(b.left) for a, b in pairwise(it.columns))


def test_the_highest_point_is_the_peak_and_areas_end_at_the_foot():
    for d in drawn(*rnn(4)).areas(base=0).values():
        assert 0 < max(heights(d)) <= SIZE
        assert d.endswith("V0Z")
    assert max(heights(drawn(*rnn(4)).areas(base=0)["temporary"])) == SIZE


def test_kinds_are_drawn_only_if_there_are_any():
    plain = drawn(jnp.sin, "f32[3]")
    assert set(plain.areas(base=0)) == {"temporary", "argument"}
    assert set(plain.areas(base=plain.arguments)) == {"temporary"}
    assert set(drawn(*rnn(4)).areas(0)) == {"temporary", "reserved", "residual", "argument"}


def test_stacks_fill_in_the_forward_loop_and_drain_in_the_backward_one():
    it = drawn(*rnn(8))
    filled = heights(it.areas(base=it.arguments)["residual"])[:-1]
    top = filled.index(max(filled))
    assert filled[1 : top + 1] == sorted(filled[1 : top + 1])
    assert filled[top:] == sorted(filled[top:], reverse=True)
    forward, backward = (stretch.loop for stretch in it.loops)
    assert forward.fills == backward.drains > 0
    assert forward.drains == backward.fills == 0


def test_the_backward_pass_is_one_stretch_on_the_right():
    (stretch,) = drawn(*rnn(4)).backward
    assert 0.3 < stretch.left < stretch.right <= 1
    assert not drawn(jnp.sin, "f32[3]").backward


def test_long_loops_have_a_gap():
    assert not drawn(*rnn(32)).gaps
    assert len(drawn(*rnn(33)).gaps) == 2


def test_a_program_of_too_many_steps_shows_the_last_of_each_loop():
    def nest(x, depth):
        if not depth:
            return jnp.sin(x)
        return lax.scan(lambda c, _: (nest(c, depth - 1), None), x, None, length=50)[0]

    it = drawn(lambda x: nest(x, 9), "f32[3]")
    assert len(it.gaps) == 1 and len(it.columns) <= COLUMNS


def test_many_instants_share_columns_and_the_highest_is_drawn():
    def many(x):
        for _ in range(COLUMNS):
            x = jnp.sin(jnp.concatenate([x, x]))[:3]
        return x

    it = drawn(many, "f32[3]")
    assert len(it.columns) <= COLUMNS < 3 * COLUMNS
    assert {column.tick.instant.op.name for column in it.columns} >= {"sin"}
    assert it.peak.tick.instant.live == timeline(graph_of(many, "f32[3]")).peak.live


@pytest.mark.parametrize(
    ("least", "step"), [(0.3, 1), (1, 1), (1.1, 2), (3, 5), (6, 10), (250e6, 500e6)]
)
def test_grid_lines_are_at_round_numbers(least, step):
    assert _round(least) == step


def test_arguments_that_would_hide_the_rest_are_left_out():
    small, large = (
        graph_of(lambda x: jnp.sin(x[0]), "f32[99]"),
        graph_of(jnp.outer, "f32[99]", "f32[99]"),
    )
    assert picture(small, small, changed=False).base == 99 * 4
    assert picture(large, large, changed=False).base == 0


def test_two_programs_are_drawn_on_one_scale():
    one, two = graph_of(jnp.sin, "f32[9]"), graph_of(lambda x: jnp.outer(x, x), "f32[9]")
    shown = picture(two, one, changed=True)
    assert [panel.name for panel in shown.panels] == ["before", "after"]
    before, after = map(shown.share, shown.panels)
    assert before == 1 > after
    assert [panel.name for panel in picture(one, one, changed=False).panels] == ["as it is"]


def test_hovering_tells_the_op_its_step_and_what_is_live():
    told = data(drawn(*rnn(40)))
    instants, values = told["instants"], told["values"]
    steps = [column[2] for column in told["columns"]]
    assert "step 1 of 40" in steps and "step 40 of 40" in steps and "step 35 of 40" not in steps
    (tanh,) = (instant for instant in instants if instant[0] == "tanh")
    assert tanh[1] == "f32[50]" and "test_chart.py:" in tanh[2]
    (stack, *_) = (values[each] for each in tanh[6])
    assert stack[1:4] == ("f32[40,50]", "8 kB", "residual")
    assert told["columns"][-1][0] == 1.0
    assert instants[told["columns"][-1][1]][0] == "return"
