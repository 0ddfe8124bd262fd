"""The graph of a program, an op of it, and programs with a region for the tests of graphs."""

import jax.numpy as jnp
from jax import lax

from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.testing import traced


def graph_of(fun, *args):
    return import_jaxpr(traced(fun, *args))


def op_of(graph, name):
    return next(op for op in graph.walk() if op.name == name)


def scans(graph):
    """The scans of a graph, or of a region, each before those in its step."""
    return [op for op in graph.walk() if isinstance(op, Scan)]


def lengths(graph):
    """How many steps each scan takes."""
    return [op.length for op in scans(graph)]


def loop(w, xs):
    def step(c, x):
        s = jnp.sin(w)
        return c + x * s, (s, jnp.cos(c))

    return lax.scan(step, jnp.zeros(3), xs)


LOOP = ("f32[3]", "f32[8,3]")


def branch(p, x):
    return lax.cond(p, lambda: (jnp.sin(x), jnp.exp(x)), lambda: (jnp.cos(x), x))
