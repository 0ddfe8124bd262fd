"""Programs that do not fit the device they are for."""

from functools import partial

import pytest

from jaxpr_opt.lint.options import Options, Spec
from jaxpr_opt.lint.rule import named
from jaxpr_opt.lint.target import Target
from jaxpr_opt.sizes import parse_bytes
from tests.lint import programs

STEPS = 4096
INPUTS = (8 * 8 + STEPS * 8) * 4


def found(memory):
    given = partial(programs.arguments, STEPS)
    target = Target(name="t", function=programs.loss, given=given, spec=Spec(mode="gradient"))
    options = Options(memory=None if memory is None else parse_bytes(memory))
    return list(named("device-memory").check(target.subject(options)))


@pytest.mark.parametrize("memory", [None, "1 GiB"])
def test_a_program_that_fits_is_not_told(memory):
    assert found(memory) == []


def test_a_budget_that_fits_and_its_price():
    (finding,) = found("300 KiB")
    assert finding.severity == "error"
    assert finding.says.startswith("it takes about 4")
    assert finding.says.endswith(" KiB, and its device has 300 KiB")
    assert finding.reason.startswith("128 KiB are arguments and results, 27")
    assert finding.fix.startswith('`optimize(memory="')
    assert finding.fix.endswith("x the time")
    assert finding.bytes > INPUTS + 300 * 1024 / 2


@pytest.mark.parametrize(
    ("memory", "fix"),
    [
        (INPUTS + 8000, "not enough: smaller arguments, or more devices"),
        (INPUTS, "arguments and results alone do not fit: smaller ones, or more devices"),
    ],
)
def test_where_no_budget_fits(memory, fix):
    (finding,) = found(memory)
    assert finding.fix.endswith(fix)
