"""Programs of other libraries, where these are installed: `make test-libraries`."""

import pytest

from bench.libraries import PROGRAMS
from bench.residuals import Program, measure

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

OFF = {
    "flax_convolutions": "XLA:CPU lays out images in columns for a convolution",
    "diffrax_checkpointed": "XLA fuses the stages of a solver's step, which read each other",
    "diffrax_backsolve": "XLA fuses the stages of a solver's step, which read each other",
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
    measured = measure(Program(make.__name__, *make()))
    assert measured.kept == measured.returned
    assert measured.is_off == (make.__name__ in OFF)
