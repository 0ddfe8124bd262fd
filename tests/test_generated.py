"""Random programs through the whole pipeline: the same bits, derivatives and effects.

A program is evaluated equation by equation before and after both phases, on arguments that make its
loops take no step, some, and all.  Costs are set so that every rewrite that is sound pays, and what
is unspecified reads as garbage.  ``TEST_EXAMPLES=10000`` searches for longer.
"""

import functools
import os
import warnings

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpr_opt.bridge import compat_types
from jaxpr_opt.cost.model import using
from jaxpr_opt.decorator import optimize
from jaxpr_opt.engine.pipeline import Pipeline
from jaxpr_opt.engine.registry import resolve
from jaxpr_opt.testing import assert_close, evaluate_exactly
from tests.generate import (
    BUFFERS,
    HANDS,
    LOG,
    NAMES,
    RECIPES,
    TABLES,
    Args,
    Early,
    Grow,
    If,
    Keep,
    Loop,
    Not,
    Recipe,
    Small,
    arguments,
)
from tests.prices import EAGER, AddedElsewhere

EXAMPLES = int(os.environ.get("TEST_EXAMPLES", "0"))
STEPS = [(0, -9.0), (2, 0.7), (100, 50.0)]
"""`(n, bound)`: loops that take no step, some, all."""

BATCHED = {"none": None, "state": Args(0, None, None, None, None, None),
           "steps": Args(None, None, None, None, 0, 0), "all": Args(0, 0, 0, 0, 0, 0)}  # fmt: skip


def examples(count):
    """That many examples, or as many as the environment asks for: others each time, and shrunk."""
    settings = {"max_examples": count, "suppress_health_check": list(hypothesis.HealthCheck)}
    if EXAMPLES:
        settings |= {
            "max_examples": EXAMPLES, "derandomize": False, "phases": tuple(hypothesis.Phase)
        }  # fmt: skip
    return hypothesis.settings(**settings)


@pytest.fixture
def eager():
    """Every rewrite pays, and unspecified values are garbage when asked for."""
    with using(EAGER):
        yield


def eager_pipeline():
    """The passes, one of which adds up elsewhere however small the array."""
    moves = AddedElsewhere()
    stages = resolve().stages
    return Pipeline(
        tuple(tuple(moves if p.name == moves.name else p for p in stage) for stage in stages)
    )


def garbage(aval):
    """What nobody may look at."""
    if not isinstance(aval.dtype, np.dtype) or aval.dtype == jax.dtypes.float0:
        return UNDEFINED(aval)
    return jnp.full(aval.shape, 7, aval.dtype)


UNDEFINED = compat_types.undefined


def floats(fun, args):
    """`fun` of its float arguments, to the sum of its float results: what can be differentiated."""
    where = [k for k, a in enumerate(args) if jnp.issubdtype(a.dtype, jnp.floating)]

    def loss(*xs):
        full = list(args)
        for k, x in zip(where, xs, strict=True):
            full[k] = x
        outs = [y for y in jax.tree.leaves(fun(*full)) if jnp.issubdtype(y.dtype, jnp.inexact)]
        return sum(jnp.sum(jnp.abs(y).astype(jnp.float32) ** 2) for y in outs)

    return loss, where


def gradient(fun):
    def grad(*args):
        loss, where = floats(fun, args)
        return jax.grad(loss, tuple(range(len(where))))(*(args[k] for k in where))

    return grad


def forward(fun):
    def jvp(*args):
        loss, where = floats(fun, args)
        xs = tuple(args[k] for k in where)
        return jax.jvp(loss, xs, tuple(jnp.cos(x) for x in xs))

    return jvp


def hessian_product(fun):
    return forward(gradient(fun))


MODES = {"values": lambda f: f, "grad": gradient, "jvp": forward, "hvp": hessian_product}


def batched(fun, how):
    dims = BATCHED[how]
    return fun if dims is None else jax.vmap(fun, tuple(dims))


def inputs(how):
    """Argument sets, each row of a batch with its own number of steps."""
    for k, (n, bound) in enumerate(STEPS):
        if how == "none":
            yield arguments(n, bound, k)
        else:
            rows = [arguments(*STEPS[(k + j) % 3], j) for j in range(2)]
            pairs = zip(BATCHED[how], *rows, strict=True)
            yield Args(*(a if dim is None else jnp.stack([a, b]) for dim, a, b in pairs))


def quiet(fun):
    """NumPy's opinion of overflow is not asked for."""

    @functools.wraps(fun)
    def wrapped(*args, **kwargs):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return fun(*args, **kwargs)

    return wrapped


def traced(fun, args):
    """The jaxpr; None if JAX has no such derivative."""
    try:
        return jax.make_jaxpr(fun)(*args)
    except (ValueError, NotImplementedError, TypeError):
        return None


def heard(fun, *args):
    """Results and what was said."""
    LOG.clear()
    out = fun(*args)
    jax.effects_barrier()
    return [np.asarray(x) for x in out], list(LOG)


@quiet
def check_exact(recipe, mode, how, monkeypatch):
    """Both phases, and the final one alone, give the same bits.

    In derivatives a cotangent of zero times what is not finite may be zero where JAX has NaN: what
    JAX makes finite must be the same.
    """
    fun = batched(MODES[mode](recipe), how)
    sets = list(inputs(how))
    jaxpr = traced(fun, sets[0])
    if jaxpr is None:
        return
    pipeline = eager_pipeline()
    first = pipeline.run(jaxpr).jaxpr
    programs = [first, pipeline.run(first, "final").jaxpr, pipeline.run(jaxpr, "final").jaxpr]
    for args in sets:
        try:
            want, said = heard(evaluate_exactly, jaxpr, *args)
        except TypeError as error:  # of a custom_vjp in a loop JAX says so when it runs
            if "forward-mode" not in str(error):
                raise
            return
        for label, program in zip(("differentiable", "both", "final"), programs, strict=True):
            with monkeypatch.context() as patch:
                patch.setattr(compat_types, "undefined", garbage)
                got, repeated = heard(evaluate_exactly, program, *args)
            for index, (a, b) in enumerate(zip(want, got, strict=True)):
                assert (a.dtype, a.shape) == (b.dtype, b.shape)
                same = (a == b) | ((a != a) & (b != b))  # noqa: PLR0124 - NaN
                if mode != "values":
                    same |= ~np.isfinite(a)
                assert same.all(), f"{label}, output {index}, {args}: should be\n{a}\nand is\n{b}"
            np.testing.assert_array_equal(repeated, said, f"what {label} said")


@quiet
def check_close(recipe, mode, how):
    """With sums in another order, what is finite is the same up to rounding."""
    fun = batched(MODES[mode](recipe), how)
    sets = list(inputs(how))
    jaxpr = traced(fun, sets[0])
    if jaxpr is None:
        return
    pipeline = resolve(reassociate=True)
    made = pipeline.run(pipeline.run(jaxpr).jaxpr, "final").jaxpr
    for args in sets:
        try:
            want = evaluate_exactly(jaxpr, *args)
        except TypeError:  # of a custom_vjp in a loop JAX says so when it runs
            return
        if all(np.isfinite(np.asarray(x, np.complex64)).all() for x in want):
            assert_close(want, evaluate_exactly(made, *args))


@quiet
def check_decorated(recipe, mode, how, inside=False):
    """`grad(optimize(f))` and its like, compiled, are `grad(f)` up to rounding; batched last, or
    `inside` what is differentiated.
    """
    whole = lambda f: MODES[mode](batched(f, how)) if inside else batched(MODES[mode](f), how)
    fun, ours = map(whole, (recipe, optimize(recipe)))
    sets = list(inputs(how))
    theirs, ours = jax.jit(fun), jax.jit(ours)
    try:
        theirs.lower(*sets[0])
    except (ValueError, NotImplementedError, TypeError):
        return  # JAX has no such derivative
    for args in sets:
        want, got = theirs(*args), ours(*args)
        finite = all(np.isfinite(np.asarray(x, np.complex64)).all() for x in jax.tree.leaves(want))
        if finite or mode == "values":
            assert_close(want, got)


# Programs that were miscompiled once.

WEAK_STACK = Recipe(Loop(If(Early(), Grow(), Keep()), 4, emits="number", nested=True, test=Small()))
"""Stacks numbers of weak type, which a buffer that is written to does not have."""

UNSPECIFIED_STACK = Recipe(
    Loop(
        If(
            Early(),
            Loop(
                If(Small(), If(Small(), Grow(), Keep()), Keep()),
                2,
                emits="row",
                read="reverse",
                nested=True,
            ),
            Keep(),
        ),
        1,
        emits="number",
        read="sum",
        nested=True,
    )
)
"""In a batch, a residual that no step gives a value."""


REPLAYED_TWICE = Recipe(Loop(If(Early(), Loop(Grow(), 3), Keep()), 1, nested=True))
"""Its second derivative replays a cond and, on its own, a loop that is in it."""

ROWS_THAT_TELL = Recipe(Loop(If(Not(Small()), Grow(), Keep(), "cond"), 4, nested=True))
"""Which steps back are taken, the rows of all steps tell, skipped ones too."""


@pytest.mark.parametrize(
    ("recipe", "mode", "how"),
    [
        (WEAK_STACK, "values", "none"),
        (UNSPECIFIED_STACK, "grad", "state"),
        (REPLAYED_TWICE, "hvp", "none"),
        (ROWS_THAT_TELL, "grad", "steps"),
    ],
)
def test_programs_that_were_miscompiled_once(recipe, mode, how, eager, monkeypatch):
    check_exact(recipe, mode, how, monkeypatch)


@pytest.mark.parametrize(("mode", "count"), [("values", 12), ("grad", 8), ("jvp", 4), ("hvp", 2)])
def test_the_same_bits(mode, count, eager, monkeypatch):
    @examples(count)
    @given(RECIPES)
    def search(recipe):
        check_exact(recipe, mode, "none", monkeypatch)

    search()


@pytest.mark.parametrize(("mode", "count"), [("values", 4), ("grad", 4)])
def test_the_same_bits_in_a_batch(mode, count, eager, monkeypatch):
    @examples(count)
    @given(RECIPES, st.sampled_from(["state", "steps", "all"]))
    def search(recipe, how):
        check_exact(recipe, mode, how, monkeypatch)

    search()


@pytest.mark.parametrize(("mode", "count"), [("values", 4), ("grad", 6), ("jvp", 2), ("hvp", 1)])
def test_rows_that_loops_hand_over(mode, count, eager, monkeypatch):
    @examples(count)
    @given(HANDS, st.sampled_from(["none", "none", "state", "steps", "all"]))
    def search(recipe, how):
        check_exact(recipe, mode, how, monkeypatch)

    search()


@examples(6)
@given(HANDS, st.sampled_from(["grad", "hvp"]), st.sampled_from(["state", "steps", "all"]))
def test_derivatives_of_a_batch_of_an_optimized_function(eager, recipe, mode, how):
    check_decorated(recipe, mode, how, inside=True)


@pytest.mark.parametrize(("mode", "count"), [("values", 8), ("grad", 8), ("jvp", 3), ("hvp", 2)])
def test_carried_buffers(mode, count, eager, monkeypatch):
    @examples(count)
    @given(BUFFERS | BUFFERS | TABLES, st.sampled_from(["none", "none", "state", "all"]))
    def search(recipe, how):
        check_exact(recipe, mode, how, monkeypatch)

    search()


@pytest.mark.parametrize(("mode", "count"), [("values", 5), ("grad", 5), ("jvp", 2), ("hvp", 1)])
def test_scalars_by_name(mode, count, eager, monkeypatch):
    @examples(count)
    @given(NAMES, st.sampled_from(["none", "none", "steps", "all"]))
    def search(recipe, how):
        check_exact(recipe, mode, how, monkeypatch)

    search()


@pytest.mark.parametrize(("mode", "count"), [("values", 8), ("grad", 8), ("jvp", 2)])
def test_sums_in_another_order(mode, count, eager):
    """The same up to rounding, where nothing is infinite or no number."""

    @examples(count)
    @given(RECIPES | BUFFERS | TABLES, st.sampled_from(["none", "none", "state", "all"]))
    def search(recipe, how):
        check_close(recipe, mode, how)

    search()


@examples(6)
@given(RECIPES | BUFFERS | TABLES, st.sampled_from(sorted(MODES)), st.sampled_from(sorted(BATCHED)))
def test_derivatives_of_an_optimized_function(recipe, mode, how):
    check_decorated(recipe, mode, how)
