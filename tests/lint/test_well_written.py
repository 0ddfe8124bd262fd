"""Ten programs that are well written, and one: a rule that runs by default has nothing to say."""

import pytest

from jaxpr_opt.frames import name_of
from jaxpr_opt.lint.run import lint
from tests.lint import well_written


@pytest.mark.parametrize(
    ("program", "args"), [pytest.param(f, args, id=name_of(f)) for f, args in well_written.PROGRAMS]
)
def test_silence(program, args):
    assert lint(program, *args) == ()
