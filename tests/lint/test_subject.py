"""A subject knows its program, and makes no arrays to know it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

import jaxpr_opt
from jaxpr_opt.insight.summary import stacked_bytes
from jaxpr_opt.lint.options import Options
from jaxpr_opt.lint.subject import Scaling, Subject, subject


def total(x, scale=1.0):
    return jnp.sum(jnp.sin(x) * scale)


def test_arrays_become_types():
    about = subject(total, jnp.ones(3), scale=2.0)
    assert about.name == "total"
    assert not isinstance(about.args[0], jax.Array)
    assert (about.args[0].shape, about.args[0].dtype) == ((3,), jnp.float32)
    assert about.kwargs == {"scale": 2.0}


def bounded(w, steps):
    """Its gradient keeps what the branch makes, dummies in steps that are skipped."""

    def step(x, i):
        return lax.cond(i < steps, lambda x: jnp.tanh(w @ x), lambda x: x, x), None

    return lax.scan(step, jnp.ones(3), jnp.arange(8))[0].sum()


STEPS = jax.ShapeDtypeStruct((3, 3), "float32"), jax.ShapeDtypeStruct((), "int32")


def test_the_program_is_traced_once_and_is_as_its_author_left_it():
    traces = []

    def watched(w, steps):
        traces.append(w)
        return jax.grad(bounded)(w, steps)

    plain = subject(watched, *STEPS)
    before = stacked_bytes(plain.graph)
    assert before > 0
    assert {each.name for each in plain.report.passes if each.done and not each.cleanup}
    assert stacked_bytes(plain.optimized) < before
    assert stacked_bytes(plain.graph) == before
    assert len(traces) == 1


def test_what_is_optimised_already_is_seen_as_that():
    about = subject(jaxpr_opt.optimize(jax.grad(bounded)), *STEPS)
    assert stacked_bytes(about.graph) < stacked_bytes(subject(jax.grad(bounded), *STEPS).graph)
    assert not any(each.done and not each.cleanup for each in about.report.passes)


def test_what_is_worth_a_finding_depends_on_the_inputs_and_the_options():
    small = Subject("s", total, (jax.ShapeDtypeStruct((100,), "float32"),))
    assert not small.is_worth(2**20 - 1)
    assert small.is_worth(2**20)
    large = Subject("l", total, (jax.ShapeDtypeStruct((2**30,), "float32"),))
    assert not large.is_worth(2**28)
    assert large.is_worth(2**29)
    tiny = Subject("t", total, small.args, options=Options(min_bytes=10, min_share=0.5))
    assert not tiny.is_worth(199)
    assert tiny.is_worth(200)


def test_a_subject_at_another_size():
    def arguments(size):
        return (jax.ShapeDtypeStruct((size,), "float32"),), {}

    about = Subject("s", total, *arguments(4), scaling=Scaling("T", (4, 8), arguments))
    assert about.graph.inputs[0].shape == (4,)
    assert about.at(8).graph.inputs[0].shape == (8,)
