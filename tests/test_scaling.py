"""The report of how a function grows."""

import json

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxpr_opt


def written(xs):
    step = lambda ys, i: (ys.at[i].set(jnp.sin(xs[i])), None)
    return jnp.sum(lax.scan(step, jnp.zeros_like(xs), jnp.arange(xs.size))[0] ** 2)


def until(xs):
    return lax.while_loop(lambda c: c[0] < 3, lambda c: c * 2, xs)


def types(n):
    return (jax.ShapeDtypeStruct((n,), "float32"),)


def test_the_report_for_people():
    lines = str(jaxpr_opt.growth(jax.grad(written), types, name="T")).splitlines()
    assert lines[0] == "written: how it grows with T"
    cells = [line.split() for line in lines]
    assert cells[1] == ["T=64", "T=128", "T=256", "growth"]
    assert [line[-1] for line in cells[2:5]] == ["O(T)", "O(T^2)", "O(T)"]
    assert any("test_scaling.py:14 in <lambda>: scatter" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_an_iteration_of_a_while():
    lines = str(jaxpr_opt.growth(until, types)).splitlines()
    (line,) = [line for line in lines if "an iteration of a while" in line]
    assert line.split()[-1] == "O(n)"


def test_the_report_for_machines():
    report = json.loads(json.dumps(jaxpr_opt.growth(jax.grad(written), types, (8, 16)).to_dict()))
    assert report["function"] == "written"
    assert report["sizes"] == [8, 16]
    work = report["work"]
    assert work["exponent"] > 1.5
    assert work["exponent_of_an_iteration"] is None
    assert work["terms"][0]["file"] == __file__


def test_arrays_are_never_made():
    """A terabyte, if they were."""
    report = jaxpr_opt.growth(jnp.sum, lambda n: (jnp.zeros((n, 2**28)),), (256, 512, 1024))
    assert report.growth["peak_bytes"].amounts[-1] == pytest.approx(2**40, rel=0.01)


def test_what_is_optimised_is_looked_at_optimised():
    report = jaxpr_opt.growth(jax.grad(jaxpr_opt.optimize(written)), types)
    assert report.growth["work"].exponent == pytest.approx(1, abs=0.1)
