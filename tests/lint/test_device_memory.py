"""Programs that do not fit the device they are for."""

from functools import partial

import pytest

from jaxpr_opt.lint.options import Options, Spec
from jaxpr_opt.lint.program import ProgramTarget
from jaxpr_opt.lint.rule import named
from jaxpr_opt.lint.target import Target
from jaxpr_opt.sizes import parse_bytes
from tests.lint import programs

STEPS = 4096
INPUTS = (8 * 8 + STEPS * 8) * 4


GIVEN = partial(programs.arguments, STEPS)
LOSS = Target(name="t", function=programs.loss, given=GIVEN, spec=Spec(mode="gradient"))


def found(memory, target=LOSS):
    options = Options(memory=None if memory is None else parse_bytes(memory))
    return list(named("device-memory").check(target.subject(options)))


@pytest.mark.parametrize("memory", [None, "1 GiB"])
def test_a_program_that_fits_is_not_reported(memory):
    assert found(memory) == []


def test_a_budget_that_fits_and_its_price():
    (finding,) = found("300 KiB")
    assert finding.severity == "error"
    assert finding.says.startswith("the program takes about 4")
    assert finding.says.endswith(" KiB, and its device has 300 KiB")
    assert finding.reason.startswith("129 KiB are arguments and results, 27")
    assert finding.fix.startswith('`optimize(memory="')
    assert finding.fix.endswith("x the time")
    assert finding.bytes > INPUTS + 300 * 1024 / 2
    graph = LOSS.subject(Options()).graph
    (of_program,) = found("300 KiB", ProgramTarget(name="t", graph=lambda: graph))
    assert of_program.fix == finding.fix  # no function, but a program that a script has compiled


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
