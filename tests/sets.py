"""Sets of parameters of tests that take long, of which `make test` runs a part."""

import pytest


def some(values, every=2):
    """One of `every` sets of parameters, and the last; the others are `slow`."""
    return [
        pytest.param(value, marks=[pytest.mark.slow] * (i % every != 0))
        for i, value in enumerate(values)
    ]


def crossed(*axes):
    """Every second of all combinations, so that each value meets half of the others."""
    made = [((), 0)]
    for axis in axes:
        made = [((*parts, v), n + i) for parts, n in made for i, v in enumerate(axis)]
    return [pytest.param(*parts, marks=[pytest.mark.slow] * (n % 2)) for parts, n in made]
