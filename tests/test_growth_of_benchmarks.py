"""The growth check finds the exponents of every program of the benchmarks, plain and optimised."""

import pytest

from bench.carried_arrays import FAMILIES
from bench.growth import EXPECTED, OURS, agree, cases
from jaxpr_opt import settings
from tests.sets import some

CASES = list(cases())
OPTIMISED = [case for case in CASES if case.name == OURS]
OTHERS = [case for case in CASES if case.name != OURS]


@pytest.mark.parametrize(
    "case", [*some(OPTIMISED), *some(OTHERS, 4)], ids=lambda case: f"{case.group}: {case.name}"
)
def test_exponents_are_within_a_tenth(case):
    with settings.override(verify=False):  # other tests look at every pass
        found = case.found()
    assert agree(case.expected, found), f"found {found}, expected {case.expected}"


def test_no_program_is_left_out():
    groups = {case.group for case in CASES}
    assert groups == EXPECTED.keys()
    assert {family.name for family in FAMILIES} < groups
    assert all(len(case.at) == 3 for case in CASES)
