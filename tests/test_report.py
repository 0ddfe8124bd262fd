"""`explain` and `diff`, with two passes that do little and say it clearly."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxpr_as_fun

import jaxpr_opt
from jaxpr_opt import frames, settings
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.frames import name_of
from jaxpr_opt.insight.summary import Summary
from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.graph import Op, in_words_of_the_source
from jaxpr_opt.ir.places import Size, user_frame
from jaxpr_opt.ir.text import to_text
from jaxpr_opt.reports import account, figures, observe
from jaxpr_opt.reports.report import short


@dataclass(frozen=True)
class CancelNegations(Pass):
    """neg (neg x) = x, unless x is an integer."""

    name = "cancel-negations"

    def find(self, op: Op) -> Iterator[Match]:
        if op.name == "neg" and getattr(op.operands[0].op, "name", "") == "neg":
            yield Match(op, "two negations cancel")

    def refuse(self, match: Match) -> str | None:
        return None if jnp.issubdtype(match.op.result.dtype, jnp.floating) else "x is an integer"

    def rewrite(self, match: Match, rw: jaxpr_opt.Rewriter) -> None:
        inner = match.op.operands[0].op
        rw.replace(match.op.result, inner.operands[0])
        rw.erase(match.op)
        if not inner.result.uses:
            rw.erase(inner)


@dataclass(frozen=True)
class Broken(Pass):
    name = "broken"

    def find(self, op: Op) -> Iterator[Match]:
        raise KeyError("oops")


cancelling = partial(jaxpr_opt.optimize, passes=[CancelNegations()])
X = jax.ShapeDtypeStruct((3,), "float32")


def negate(x):
    return -x


def twice(x):
    return negate(-x) * jnp.sin(x)


HERE = (
    str(Path(__file__).relative_to(Path.cwd()))
    if Path(__file__).is_relative_to(Path.cwd())
    else __file__
)
LINE = negate.__code__.co_firstlineno + 1


# -- what a report says


def test_the_final_phase_is_told_of_too():
    def countdown(x, steps):
        def step(carry, _):
            body = lambda c: (jnp.sin(c[0]), c[1] - 1)
            return lax.cond(carry[1] > 0, body, lambda c: c, carry), None

        return lax.scan(step, (x, steps), None, length=64)[0][0]

    row = jax.ShapeDtypeStruct((4096,), "float32")
    report = jaxpr_opt.explain(countdown, row, jax.ShapeDtypeStruct((), "int32"))
    assert [each.name for each in report.passes if each.done and not each.cleanup] == [
        "exit-loop-early"
    ]
    after = {op.name for op in observe.optimized(countdown, (row, 3), {})[0].walk()}
    assert "while" in after
    assert "scan" not in after


def test_what_where_and_how_often():
    def four_times(x):
        return negate(-x) + negate(-(x + 1))

    report = jaxpr_opt.explain(cancelling(four_times), X)
    assert report.changed
    (only,) = report.passes
    assert only.name == "cancel-negations"
    (place,) = only.done
    assert str(place) == f"two negations cancel ({HERE}:{LINE} in negate; 2 times)"
    assert place.frame == (__file__, LINE, "negate")


def test_as_text():
    text = str(jaxpr_opt.explain(cancelling(twice), X))
    lines = text.splitlines()
    assert lines[0].startswith("twice: 1 pass changed the program, in ")
    assert lines[1] == ""
    assert lines[2].startswith("cancel-negations  ")
    assert lines[3] == f"  two negations cancel ({HERE}:{LINE} in negate)"
    assert lines[4] == ""
    assert [line.split() for line in lines[5:7]] == [
        ["before", "after"],
        ["equations", "4", "2", "÷", "2.0"],
    ]
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)
    assert "\x1b" not in text


def test_what_each_pass_saved():
    def grad_of_loop(x):
        def step(c, _):
            return jnp.sin(negate(-c)) * c, None

        return jax.grad(lambda x: jnp.sum(lax.scan(step, x, None, 8)[0]))(x)

    (only,) = jaxpr_opt.explain(cancelling(grad_of_loop), X).passes
    assert only.saved.flops == 8 * 4 * 3  # four negations at each of eight steps
    assert only.saved.residual_bytes == 0


@dataclass(frozen=True)
class DropDead(Pass):
    """Erase what nobody reads."""

    name = "drop-dead"
    cleanup = True

    def find(self, op: Op) -> Iterator[Match]:
        if not op.is_terminator and not any(value.uses for value in op.results):
            yield Match(op, "nobody reads it")

    def rewrite(self, match: Match, rw: jaxpr_opt.Rewriter) -> None:
        rw.erase(match.op)


@dataclass(frozen=True)
class ForgetSines(Pass):
    """sin x = x: wrong, but it leaves the sine to be tidied up."""

    name = "forget-sines"

    def find(self, op: Op) -> Iterator[Match]:
        if op.name == "sin" and op.result.uses:
            yield Match(op, "a sine is forgotten")

    def rewrite(self, match: Match, rw: jaxpr_opt.Rewriter) -> None:
        rw.replace(match.op.result, match.op.operands[0])


def test_tidying_up_is_credited_to_who_made_the_mess():
    wrong = jaxpr_opt.optimize(lambda x: jnp.sin(x) * 2.0, passes=[ForgetSines(), DropDead()])
    report = jaxpr_opt.explain(wrong, X)
    forget, drop = report.passes
    assert forget.saved.flops == 3
    assert drop.saved == account.Savings()
    assert ", saves 3 FLOPs\n  a sine is forgotten" in str(report)
    assert "\nclean-up after them: drop-dead 1\n" in str(report)


@pytest.mark.parametrize(
    ("saved", "text"),
    [
        (account.Savings(), ""),
        (account.Savings(33_800_000, 5_000), "saves 33.8 MB kept for the gradient and 5,000 FLOPs"),
        (
            account.Savings(33_800_000, -5_000),
            "saves 33.8 MB kept for the gradient, adds 5,000 FLOPs",
        ),
        (account.Savings(8, -5), ""),
    ],
)
def test_savings_in_words(saved, text):
    whole = Summary(equations=9, residual_bytes=40_000_000, peak_bytes=1, flops=100_000)
    assert saved.text(whole) == text


def test_a_near_miss_says_why():
    report = jaxpr_opt.explain(cancelling(negate), -jnp.arange(3))
    assert str(report).startswith("negate: no pass found anything to improve, in ")

    def integers(x):
        return negate(-x)

    report = jaxpr_opt.explain(cancelling(integers), jnp.arange(3))
    assert not report.changed
    first, *rest = str(report).splitlines()
    assert first.startswith("integers: no pass found anything to improve, in ")
    assert first.endswith("; 1 near miss")
    assert rest == [
        "",
        "not done, because  .in_full() shows each place",
        "  cancel-negations, 1 place: x is an integer",
    ]
    assert str(report.in_full()).splitlines()[1:] == [
        "",
        "cancel-negations  not done, because",
        f"  x is an integer ({HERE}:{LINE} in negate), which prevents: two",
        "  negations cancel",
    ]


def test_values_without_names_are_called_by_the_source():
    """Also where an expression is long, or on several lines; not while nobody reads it."""

    def loss(x):
        step = lambda x, row: (x + jnp.sin(row), row * jnp.cos(row))
        x, ys = lax.scan(step, x, x * jnp.arange(8.0)[:, None])
        return x.sum() + jnp.sum(
            ys * jnp.ones_like(ys) * jnp.ones_like(ys) * 2.0 + jnp.tanh(ys) ** 2.0
        )

    text = " ".join(str(jaxpr_opt.explain(jax.grad(loss), jnp.ones(3)).in_full()).split())
    assert "cos of `jnp.sin(row)` depends on the stream f32[3]" in text
    assert "which prevents: it is kept once instead of 8 times" in text
    graph = observe.original(loss, (jnp.ones(3),), {})
    ops = [op for op in graph.body.ops if op.name in ("tanh", "reduce_sum")]
    with in_words_of_the_source():
        labels = [op.result.label for op in ops]
    assert labels[1:] == [
        "tanh of `jnp.tanh(ys)`",
        "reduce_sum of `jnp.sum(ys * jnp.ones_like(ys) * jnp.on…`",
    ]
    assert {op.result.label for op in ops} == {"tanh", "reduce_sum"}


def test_many_places_are_counted():
    source = "def f(x):\n" + "    x = s(-(-x))\n" * 12 + "    return x\n"
    scope = {"s": jnp.sin}
    exec(compile(source, "many.py", "exec"), scope)
    lines = str(jaxpr_opt.explain(cancelling(scope["f"]), X)).splitlines()
    assert lines[3] == "  two negations cancel (many.py:2 in f)"
    assert lines[10] == "  two negations cancel (many.py:9 in f)"
    assert lines[11] == "  and at 4 other places"


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ("tanh", "tanh"),
        ("tanh, f32[2,1], x", "tanh, f32[2,1], x"),
        ("tanh, f32[2,1], x, y", "tanh, f32[2,1] and 2 more"),
        ("f32[2,1], f32[2,2,64], x, y, z", "f32[2,1], f32[2,2,64] and 3 more"),
        ("add of `x + y`, le of `f(x, y)`, x, y", "add of `x + y`, le of `f(x, y)` and 2 more"),
    ],
)
@pytest.mark.parametrize("sentence", ["{}: kept once", "made again from {} (f.py:1 in f)", "{}"])
def test_many_names_are_counted(names, told, sentence):
    assert short(sentence.format(names)) == sentence.format(told)


def test_what_is_no_function():
    with pytest.raises(TypeError, match="explain: fun must be callable, got 3"):
        jaxpr_opt.explain(3, X)
    with pytest.raises(TypeError, match="diff: fun must be callable, got 3"):
        jaxpr_opt.diff(3, X)
    with pytest.raises(TypeError, match="diff: against must be callable, got 3"):
        jaxpr_opt.diff(negate, X, against=3)

    async def awaited(x):
        return x

    with pytest.raises(TypeError, match="explain: fun must return arrays, but awaited is a corout"):
        jaxpr_opt.explain(awaited, X)


def test_failures_are_part_of_the_report():
    both = jaxpr_opt.optimize(twice, passes=[Broken(), CancelNegations()])
    with settings.override(strict=False), pytest.warns(UserWarning, match="pass broken failed"):
        report = jaxpr_opt.explain(both, X)
    assert report.failures == ("pass broken failed: KeyError: 'oops'",)
    assert "\nfailed, and left out\n  pass broken failed: KeyError: 'oops'\n" in str(report)
    assert report.changed


def test_as_json():
    shown = json.loads(json.dumps(jaxpr_opt.explain(cancelling(twice), X).to_dict()))
    assert shown["function"] == "twice"
    assert shown["changed"] is True
    assert shown["figures"]["equations"] == {"before": 4, "after": 2}
    (only,) = shown["passes"]
    assert only["done"] == [
        {
            "says": "two negations cancel",
            "where": {"file": __file__, "line": LINE, "function": "negate"},
            "times": 1,
        }
    ]
    assert only["refused"] == shown["failures"] == []


def test_when_optimisation_is_off():
    with settings.override(disable=True):
        report = jaxpr_opt.explain(cancelling(twice), X)
        assert str(report) == "twice: no pass ran; JAXPR_OPT_DISABLE is set"
    assert str(jaxpr_opt.explain(jaxpr_opt.optimize(twice, passes=[]), X)) == "twice: no pass ran"


# -- which functions


def test_a_plain_function_is_explained_as_if_optimised():
    report = jaxpr_opt.explain(lambda x: x @ jnp.zeros((3, 3)) * 1.0, X)
    assert "simplify" in [each.name for each in report.passes]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda f: jax.jit(jax.grad(f)),
        lambda f: jax.jit(lambda x: lax.scan(lambda c, _: (f(c) + c, None), x, None, 2)[0]),
        jax.vmap,
        lambda f: cancelling(lambda x: f(x) + 1),
        jax.checkpoint,
        jax.hessian,
    ],
    ids=["grad", "scan", "vmap", "nested", "checkpoint", "hessian"],
)
def test_optimised_functions_inside_of_others(wrap):
    inner = cancelling(lambda x: jnp.sum(twice(x)) * x[0])
    fun = wrap(inner)
    x = jnp.arange(6.0).reshape(2, 3) if wrap is jax.vmap else jnp.arange(3.0)
    expected = fun(x)  # JAX has traced all of it now, and remembers
    report = jaxpr_opt.explain(fun, x)
    assert report.changed
    graph, _ = observe.optimized(fun, (x,), {})
    assert "optimized" not in to_text(graph)
    np.testing.assert_allclose(jaxpr_as_fun(export(graph))(x)[0], expected, rtol=1e-6)


def test_explaining_leaves_caches_alone():
    count = 0

    @cancelling
    def counted(x):
        nonlocal count
        count += 1
        return negate(-x)

    counted(jnp.ones(3))
    assert count == 1
    jaxpr_opt.explain(counted, jnp.ones(3))
    seen = count
    assert seen > 1
    counted(jnp.ones(3))
    assert count == seen


def test_nothing_runs():
    def fails_when_run(x):
        jax.debug.callback(lambda: pytest.fail("it ran"))
        return twice(x)

    assert jaxpr_opt.explain(cancelling(fails_when_run), X).changed


def test_static_and_keyword_arguments():
    @partial(cancelling, static_argnames="times")
    def repeated(x, *, times):
        for _ in range(times):
            x = jnp.sin(negate(-x))
        return x

    (only,) = jaxpr_opt.explain(repeated, X, times=3).passes
    assert only.count == 3
    again = observe.reselected(repeated, [CancelNegations()], [])
    assert jaxpr_opt.explain(again, X, times=2).passes[0].count == 2


def test_reselecting_reaches_what_is_inside():
    outer = jax.jit(lambda x: cancelling(twice)(x) + 1)
    assert jaxpr_opt.explain(outer, X).changed
    assert not jaxpr_opt.explain(observe.reselected(outer, ["simplify"], []), X).changed


def test_reselecting_the_same_passes():
    again = observe.reselected(cancelling(twice), [CancelNegations()], [])
    assert jaxpr_opt.explain(again, X).changed
    assert name_of(again) == "twice"


# -- diff


def test_diff_before_and_after():
    difference = jaxpr_opt.diff(cancelling(twice), X)
    assert difference.changed
    assert str(difference).startswith(
        "  fn (x:f32[3]) {\n-   n:f32[3] = neg x\n-   n1:f32[3] = neg n\n"
    )
    assert not jaxpr_opt.diff(cancelling(jnp.sin), X).changed


def test_diff_against_another_function():
    assert not jaxpr_opt.diff(twice, X, against=lambda y: negate(-y) * jnp.sin(y)).changed
    assert jaxpr_opt.diff(twice, X, against=cancelling(twice)).changed


# -- the package


def test_public_names():
    public = {n: getattr(jaxpr_opt, n) for n in dir(jaxpr_opt) if n[0] != "_"}
    names = {n for n, value in public.items() if not inspect.ismodule(value)}
    assert names == {
        "Frontier",
        "GraphDiff",
        "Match",
        "Optimized",
        "Pass",
        "PassError",
        "Pipeline",
        "Report",
        "Rewriter",
        "budget",
        "diff",
        "everywhere",
        "explain",
        "growth",
        "residuals",
        "lint",
        "lint_target",
        "optimize",
    }


# -- words


def test_places_below_the_current_directory_are_relative(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    inside = str(tmp_path / "a" / "b.py")
    assert frames.frame_text((inside, 3, "f.<locals>.step")) == f"{Path('a', 'b.py')}:3 in step"
    assert frames.frame_text(("/else/where.py", 3, "<module>")) == "/else/where.py:3"
    assert (
        frames.frame_text(("<ipython-input-1>", 3, "<lambda>")) == "<ipython-input-1>:3 in <lambda>"
    )


def test_blame_points_at_the_users_code():
    with pytest.raises(TypeError) as caught:
        jax.jit(lambda x: jnp.reshape(x, (4,)))(jnp.ones(3))
    line = test_blame_points_at_the_users_code.__code__.co_firstlineno + 2
    assert frames.blame(caught.value).endswith(f" ({HERE}:{line} in <lambda>)")
    assert frames.blame(ValueError()) == "ValueError"


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (figures.number_text, 0, "0"),
        (figures.number_text, 999_999, "999,999"),
        (figures.number_text, 33_712_345, "33.7 M"),
        (figures.number_text, 4.5e15, "4.5 P"),
        (figures.bytes_text, 0, "0 B"),
        (figures.bytes_text, 999, "999 B"),
        (figures.bytes_text, 4_194_304, "4.19 MB"),
        (figures.bytes_text, 2_158_000_000, "2.16 GB"),
        (figures.bytes_text, 515_000_000, "515 MB"),
        (figures.seconds_text, 0.0004, "0.4 ms"),
        (figures.seconds_text, 0.012, "12 ms"),
        (figures.seconds_text, 3.92, "3.9 s"),
    ],
)
def test_quantities(write, value, text):
    assert write(value) == text


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (10, 10, ""),
        (1000, 1001, "about the same"),
        (2158, 84, "÷ 26"),
        (92.8, 42.2, "÷ 2.2"),
        (100, 103, "x 1.03"),
        (5, 0, "gone"),
        (0, 5, "new"),
        (None, 5, ""),
    ],
)
def test_changes(before, after, change):
    assert figures.Figure("", "", before, after, str).change == change


# -- what a place tells besides


@dataclass(frozen=True)
class SizedNegations(CancelNegations):
    """As above, about the inner negation."""

    name = "sized-negations"

    def find(self, op: Op) -> Iterator[Match]:
        for match in super().find(op):
            inner = match.op.operands[0].op
            yield Match(match.op, match.says, at=inner, about=inner.result, waste="zeros")


def test_a_match_may_be_about_another_line_and_tells_how_often_and_how_large():
    def loop(x):
        def step(c, _):
            inner = -c
            return negate(inner), None

        return lax.scan(step, x, None, length=5)[0]

    program = jaxpr_opt.optimize(loop, passes=[SizedNegations()])
    ((place,),) = [each.done for each in jaxpr_opt.explain(program, X).passes]
    assert place.frame == (
        __file__,
        loop.__code__.co_firstlineno + 2,
        f"{loop.__qualname__}.<locals>.step",
    )
    assert place.size == Size("f32[3]", 12, (5,))
    assert place.size.total == 60
    assert place.waste == "zeros"


def test_what_jax_has_jitted_is_told_by_the_line_that_calls_it():
    def clipped(x):
        return jnp.where(x > 0, x, 0)

    (select,) = [op for op in observe.original(clipped, (X,), {}).walk() if op.name == "select_n"]
    assert user_frame(select) == (
        __file__,
        clipped.__code__.co_firstlineno + 1,
        clipped.__qualname__,
    )


# -- donation ------------------------------------------------------------------------------------

BIG = jnp.zeros((1024, 512))


def test_a_gradient_is_no_next_version_of_its_parameters():
    """They are needed to make that: nothing is said of donating them to their gradients."""

    def loss(params, x):
        return jnp.sum(jnp.tanh(params["a"] * x) * params["b"]) ** 2

    def step(params, x):
        value, gradient = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value

    params = {"a": BIG, "b": BIG}
    for fun in (jax.grad(loss), jax.value_and_grad(jax.jit(loss)), jax.jit(jax.grad(loss))):
        report = jaxpr_opt.explain(fun, params, BIG)
        assert report.donation.donated == ()
        assert "can be donated" not in str(report)
    donated = jaxpr_opt.explain(step, params, BIG).donation.donated
    assert [each.path for each in donated] == ["params['a']", "params['b']"]
