"""What the tests of the loop passes share."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from bench.limits import temporary_bytes
from jaxpr_opt.bridge import compat_types
from jaxpr_opt.engine.interface import Pass
from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.graph import Graph, Phase
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.text import to_text
from jaxpr_opt.testing import assert_close, assert_same_bits, evaluate_exactly, run_alone, traced
from jaxpr_opt.testing.sampling import random_inputs


def unspecified(like):
    """An array of which nothing is said, as JAX makes them for branches that are not taken."""
    return compat_types.undefined(jax.typeof(like))


def keep(x):
    """The other branch."""
    return x


def paths():
    """Prices that end when they pass a bound: a step takes hardly longer than testing that."""

    def mean(sigma, noise, bound):
        def step(carry, z):
            s, alive = carry
            s = jnp.where(alive, s * jnp.exp(0.1 * z * sigma - sigma**2), s)
            return (s, alive & (s < bound)), None

        begin = jnp.ones(noise.shape[1:]), jnp.ones(noise.shape[1:], bool)
        return jnp.mean(lax.scan(step, begin, noise)[0][0] ** 2)

    return mean


def alone(
    each: Pass,
    program,
    *args,
    fires: bool,
    phase: Phase | None = None,
    evaluate=evaluate_exactly,
) -> Graph:
    """The graph after one pass. If it fires, the graph gives the same bits as before (if it says
    so: the same up to rounding); if not, it is as it was.

    Where a whole diff would hide the point; arguments are arrays, or types as text, for which
    arrays are drawn as in `check_rewrite`, integers out of range among them.  Many steps
    take long equation by equation: `evaluate` is `compiled` where XLA rounds nothing.
    """
    jaxpr: ClosedJaxpr = traced(program, *args)
    graph = import_jaxpr(jaxpr, phase or each.phase)
    record = run_alone((each,), graph).record(each.name, each.cleanup)
    assert bool(record.rewrites) == fires, record
    exported = export(graph)
    for old, new in zip(jaxpr.out_avals, exported.out_avals, strict=True):
        assert old == new
        assert old.weak_type == new.weak_type
    if not fires:
        assert to_text(graph) == to_text(import_jaxpr(jaxpr, phase or each.phase))
        return graph
    concrete = not any(isinstance(a, str) for a in args)
    for seed in range(3):
        drawn = random_inputs(jaxpr.in_avals, seed, places=seed > 0)
        given = [d if isinstance(a, str) else a for a, d in zip(args, drawn, strict=True)]
        want = evaluate(jaxpr, *given)
        agree = assert_close if each.rounds else assert_same_bits
        agree(want, evaluate(exported, *given))
        if concrete:
            break
    return graph


def compiled(jaxpr: ClosedJaxpr, *args):
    """The results of a program that XLA compiles as a whole."""
    return jax.jit(jaxpr_as_fun(jaxpr))(*args)


def looped(step):
    """A loop that carries an array and gets numbers and indices."""

    def program(c, us, idx):
        return lax.scan(lambda c, x: (step(c, *x), None), c, (us, idx))[0]

    return program


def there_and_back(x, bound):
    """Rows that a loop stacks as long as elements are below a bound, and one in reverse reads."""

    def body(x, _):
        p = x < bound
        return jnp.where(p, x + 1, x), (jnp.sin(x), p)

    x, rows = lax.scan(body, x, None, length=6)
    back = lambda a, row: (jnp.where(row[1], a * row[0], a), None)
    return lax.scan(back, x, rows, reverse=True)[0]


memory = temporary_bytes


def measured(fun, *args):
    """What a program gives, and its temporary bytes; it is compiled once."""
    made = jax.jit(fun).lower(*args).compile()
    return made(*args), made.memory_analysis().temp_size_in_bytes
