"""Every test runs with failing passes raised and graphs verified after every pass."""

import hypothesis
import pytest

from jaxpr_opt import settings

hypothesis.settings.register_profile(
    "quick",
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
)
"""The same programs in every run; one that fails is not shrunk, which takes minutes."""
hypothesis.settings.load_profile("quick")


@pytest.fixture(autouse=True)
def strict_and_verified():
    with settings.override(strict=True, verify=True):
        yield
