"""In which order ops run: that in which they become ready, or that of the program."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.analysis.liveness.fused import fused
from jaxpr_opt.analysis.liveness.scheduled import scheduled
from jaxpr_opt.cost.devices import CPU, GPU
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.testing import traced

X = "f32[64,64]"


def runs(program, *types, device=CPU):
    """The names of ops as they run, and bytes of copies that are there meanwhile."""
    body = import_jaxpr(traced(program, *types), "final").body
    with using(CostModel(device)):
        found = list(scheduled(body, fused(body.terminator)))
    rows, copied = [], 0
    for run in found[:-1]:
        copied += 0 if run.copy is None else run.copy.of.nbytes
        rows.append((run.op.name if run.copy is None else "copy", copied))
        copied -= sum(copy.of.nbytes for copy in run.done)
    return rows


def two_chains(x, y):
    return jnp.exp(x @ x) @ x, jnp.sort(y)


@pytest.mark.parametrize(
    ("device", "order"),
    [
        (CPU, ["dot_general", "sort", "exp", "dot_general"]),
        (GPU, ["dot_general", "exp", "dot_general", "sort"]),
    ],
)
def test_what_is_ready_first_runs_first(device, order):
    assert [name for name, _ in runs(two_chains, X, X, device=device)] == order


def test_what_goes_through_a_barrier_waits_for_all_of_it():
    def program(x, y):
        made = jnp.exp(x @ x) @ x
        made, y = lax.optimization_barrier((made, y))
        return made, jnp.sort(y)

    assert [name for name, _ in runs(program, X, X)][-1] == "sort"


def test_copies_of_what_is_laid_out_otherwise_are_made_early():
    """The gradient of a kernel reads a copy of the image, which is there before the cotangent."""
    dims = ("NHWC", "HWIO", "NHWC")
    convolved = lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dims)

    def program(x, w, ct):
        ct = jnp.sort(jnp.sort(ct), 0)
        return jax.vjp(lambda w: convolved(x, w), w)[1](ct)[0]

    image = "f32[8,32,32,16]"
    nbytes = 4 * 8 * 32 * 32 * 16
    names, copied = zip(*runs(program, image, "f32[3,3,16,16]", image), strict=True)
    assert names == ("sort", "copy", "sort", "copy", "conv_general_dilated")
    assert copied == (0, nbytes, nbytes, 2 * nbytes, 2 * nbytes)
