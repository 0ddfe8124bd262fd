"""Switches of the environment: names that are not known, and a line for each program."""

import logging
import os
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxpr_opt
from jaxpr_opt import settings


def loss(xs):
    step = lambda ys, i: (ys.at[i].set(jnp.sin(xs[i])), None)
    return jnp.sum(lax.scan(step, jnp.zeros_like(xs), jnp.arange(xs.size))[0] ** 2)


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("JAXPR_OPT_STRCT", "did you mean 'JAXPR_OPT_STRICT'"),
        ("JAXPR_OPT_LOGS", "did you mean 'JAXPR_OPT_LOG'"),
        ("JAXPR_OPTDISABLE", "did you mean 'JAXPR_OPT_DISABLE'"),
        ("JAXPR_OPT_QQQ_QQQ_QQQ_QQQ_QQQ", "expected one of JAXPR_OPT_DISABLE, JAXPR_OPT_STRICT"),
    ],
)
def test_a_misspelt_variable_names_the_nearest(monkeypatch, variable, hint):
    monkeypatch.setenv(variable, "1")
    with pytest.warns(UserWarning, match=f"^jaxpr_opt: {variable} is not read.*{hint}"):
        settings.check_environment()


def test_variables_that_are_read_are_fine(monkeypatch):
    for variable in settings.KNOWN:
        monkeypatch.setenv(variable, "0")
    settings.check_environment()
    assert "JAXPR_OPT_EVERYWHERE" in os.environ


def test_each_program_is_a_line(caplog):
    with caplog.at_level(logging.INFO, "jaxpr_opt"):
        jax.jit(jax.grad(jaxpr_opt.optimize(loss))).lower(jnp.ones(8))
    lines = [record.getMessage() for record in caplog.records]
    assert any(re.fullmatch(r"loss, traced: .*, in \d+ ms", line) for line in lines)
    assert any(re.search(r": [a-z-]+ \d", line) for line in lines)
    assert any(", compiled: " in line for line in lines)


def test_nothing_is_said_unless_asked_for(capfd):
    jax.jit(jaxpr_opt.optimize(lambda x: loss(x) + 1)).lower(jnp.ones(9))
    assert capfd.readouterr() == ("", "")
    with settings.override(log=True):
        jax.jit(jaxpr_opt.optimize(lambda x: loss(x) + 2)).lower(jnp.ones(9))
    jaxpr_opt.engine.log._write_to_stderr.cache_clear()
    logger = logging.getLogger("jaxpr_opt")
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)
    logger.propagate = True
    assert "jaxpr_opt: <lambda>, traced: " in capfd.readouterr().err
