"""Programs of other libraries, where these are installed: `make test-libraries`."""

import jax
import pytest

from bench.libraries import PROGRAMS
from bench.limits import is_larger, temporary_bytes
from bench.residuals import measure, of_library
from jaxpr_opt import optimize

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

OFF = {
    "flax_convolutions": "XLA:CPU lays out images in columns for a convolution",
    "diffrax_checkpointed": "XLA fuses the stages of a solver's step, which read each other",
}
"""Programs whose peak is not within a factor of two, and why."""

MAKERS = [
    pytest.param(library, make, id=make.__name__)
    for library, makers in PROGRAMS.items()
    for make in makers
]


@pytest.mark.parametrize(("library", "make"), MAKERS)
def test_what_is_kept_and_how_much_is_live(library, make):
    """To the byte what the forward pass returns, within a factor what the gradient needs."""
    pytest.importorskip(library, reason=f"{library} is not installed")
    measured = measure(of_library(make))
    assert measured.kept == measured.returned
    assert measured.is_off == (make.__name__ in OFF)


@pytest.mark.parametrize(("library", "make"), MAKERS)
def test_no_program_is_larger_than_in_plain_jax(library, make):
    """In temporary bytes of its gradient, in either order."""
    pytest.importorskip(library, reason=f"{library} is not installed")
    function, arguments = make()
    plain = temporary_bytes(jax.grad(function), *arguments)
    for gradient in (optimize(jax.grad(function)), jax.grad(optimize(function))):
        ours = temporary_bytes(gradient, *arguments)
        assert not is_larger(ours, plain), f"{ours:,} bytes, plain JAX {plain:,}"
