"""A trial of the engine on the installed JAX: one small program that uses a bit of everything.

It is traced, imported, changed, exported, differentiated, vectorised and lowered; nothing is
compiled and nothing runs. The exception says what does not work.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax
from jax.experimental import checkify
from jax.extend.core import ClosedJaxpr

from jaxpr_opt.boundary import rules
from jaxpr_opt.bridge import compat
from jaxpr_opt.engine.pipeline import Pipeline
from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.rewriter import Rewriter


def run() -> None:
    """Raise what the engine raises."""
    x = np.ones(3, np.float32)
    with compat.at_top_level():
        _translate(_traced(x))
        jax.jit(lambda x: _transformed(x)).lower(x)  # noqa: PLW0108  JAX remembers functions


def _traced(x: Any) -> ClosedJaxpr:
    return jax.make_jaxpr(lambda x: _program(x))(x)  # noqa: PLW0108  as above


def _program(x: jax.Array) -> Any:
    """A loop with a branch, reads and writes of an array by the piece, a call."""

    def step(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        scaled = lax.cond(row > 0, lambda c: c * row, lambda c: c, carry)
        return scaled, lax.sin(scaled)

    carry, rows = lax.scan(step, x[0], x)
    _, at = lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1]), (0, 1))
    return lax.dynamic_update_slice(rows, carry[None], (at,))


def _translate(jaxpr: ClosedJaxpr) -> None:
    """To a graph, changed in one place, and back."""
    graph = import_jaxpr(jaxpr)
    end = graph.body.terminator
    rw = Rewriter(graph, end)
    (result,) = graph.body.outputs
    rw.set_outputs(graph.body, [rw.insert(lambda y: y + y, result, before=end)])
    compat.check_jaxpr(export(graph))


def _transformed(x: jax.Array) -> Any:
    """The program's results, under the rules of the boundary and JAX's transformations."""

    def fun(x: jax.Array) -> jax.Array:
        (result,) = rules.call(_traced(x), Pipeline(()), "trial", [x])
        return lax.reduce_sum(result, (0,))

    batched = jax.vmap(fun)(x[None])
    checked = checkify.checkify(fun)(x)[1]
    forward = jax.jvp(fun, (x,), (x,))
    return checked, batched, forward, jax.grad(fun)(x), jax.grad(jax.checkpoint(fun))(x)
