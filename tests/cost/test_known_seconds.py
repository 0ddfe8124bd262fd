"""What is known of the time of ops, where an op among them, or in a loop, has no price."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.cost.known_seconds import known_seconds
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.insight.prediction import predicted_seconds
from jaxpr_opt.ir.importer import import_jaxpr


def graph_of(step, length):
    run = lambda x: lax.scan(lambda c, _: (step(c), None), x, length=length)[0]
    return import_jaxpr(jax.make_jaxpr(run)(jnp.ones(64)), "final")


def unknown(c):
    return jnp.sin(jax.pure_callback(np.cos, jax.typeof(c), c))


def test_a_loop_takes_what_is_known_of_its_steps():
    """A step that nobody can price costs what the rest of it does, in each step."""
    model, graph = cost_model(), graph_of(unknown, 10)
    assert predicted_seconds(graph, model) is None
    (sin,) = (op for op in graph.walk() if op.name == "sin")
    assert known_seconds(graph.body.ops, model) == 10 * model.run([sin]) > 0


def test_more_steps_take_longer():
    short, long = (known_seconds(graph_of(jnp.sin, n).body.ops, cost_model()) for n in (3, 30))
    np.testing.assert_allclose(long, 10 * short)
