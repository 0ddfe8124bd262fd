"""The documentation of a rule: its example has the finding, what is written instead has not."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.lint.rule import documentation, named
from jaxpr_opt.lint.run import check
from jaxpr_opt.lint.subject import subject
from tests.lint.threads import WEIGHTS, f32, i32

ARGUMENTS = {
    "JXO201": (f32(4000),),
    "JXO202": (f32(4000), i32()),
    "JXO203": (f32(100_000), f32(1000)),
    "JXO204": (f32(4096, 16), i32(64, 16)),
    "JXO301": (WEIGHTS, f32(32, 256), i32()),
    "JXO302": (f32(),),
    "JXO303": (WEIGHTS, f32(32, 256), i32(32)),
    "JXO304": (f32(1), f32(1000)),
}


def findings(code, section):
    """Those of a rule in the gradient of the function that a section defines."""
    scope = {"jax": jax, "jnp": jnp, "lax": lax, "optimize": optimize}
    exec(documentation(named(code))[section], scope)
    return check(subject(jax.grad(scope["loss"]), *ARGUMENTS[code]), [named(code)])


@pytest.mark.parametrize("code", ARGUMENTS)
def test_the_example_has_it(code):
    assert [each.code for each in findings(code, "Example")] == [code]


@pytest.mark.parametrize("code", ARGUMENTS)
def test_what_is_written_instead_has_not(code):
    assert findings(code, "Instead") == ()
