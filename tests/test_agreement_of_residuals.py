"""What is reported of the examples' gradients is what compiled programs return and set aside."""

import pytest

from bench.residuals import FACTOR, examples, measure
from tests.sets import some

PROGRAMS = [each for each in examples() if "by hand" not in each.name]
"""`python -m bench residuals` looks at all."""


@pytest.mark.parametrize("program", some(PROGRAMS), ids=[each.name for each in PROGRAMS])
def test_examples(program):
    """To the byte what the forward pass returns, within a factor what the gradient needs."""
    measured = measure(program)
    assert measured.kept == measured.returned
    assert 1 / FACTOR <= measured.ratio <= FACTOR
