"""Growth of a target: the rules, and what the command line shows."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.cli import main
from jaxpr_opt.errors import TargetError
from jaxpr_opt.lint.options import Options, Spec, parse
from jaxpr_opt.lint.rule import documentation
from jaxpr_opt.lint.rules.growth import GrowthOverLimit, SuperlinearResiduals
from jaxpr_opt.lint.target import Target

PROGRAMS = """
import jax
import jax.numpy as jnp
from jax import lax

def written(xs):
    def step(ys, i):
        return ys.at[i].set(jnp.sin(ys[i - 1] + xs[i])), None  # the line
    return jnp.sum(lax.scan(step, jnp.zeros_like(xs), jnp.arange(1, xs.size))[0])

def arguments(T=8):
    return (jax.ShapeDtypeStruct((T,), "float32"),)

def fixed():
    return arguments()
"""
LINE = PROGRAMS[: PROGRAMS.index("# the line")].count("\n") + 1


def written(xs):
    def step(ys, i):
        return ys.at[i].set(jnp.sin(ys[i - 1] + xs[i])), None

    return jnp.sum(lax.scan(step, jnp.zeros_like(xs), jnp.arange(1, xs.size))[0])


def stored(xs):
    """No pass helps: the sines are as long as the loop, and each is another."""
    step = lambda c, i: (jnp.sin(c) * xs[i], None)
    return jnp.sum(lax.scan(step, xs, jnp.arange(xs.size))[0])


def arguments(steps=8):
    return (jax.ShapeDtypeStruct((steps,), "float32"),)


def subject(function, given=arguments, min_bytes=0, **settings):
    asked = {"mode": "gradient", "scale": "steps=64,128,256"} | settings
    target = Target(name="t", function=function, given=given, spec=Spec(**parse(asked, Spec)))
    return target.subject(Options(min_bytes=min_bytes, min_share=0))


def found(rule, function, given=arguments, min_bytes=0, **settings):
    return list(rule().check(subject(function, given, min_bytes, **settings)))


def test_a_line_that_grows_faster_than_it_may():
    (finding,) = found(GrowthOverLimit, written, growth="O(steps)")
    assert finding.says == "O(steps^2) work in scatter: faster than O(steps)"
    assert finding.reason.endswith("at steps = 64, 128, 256")
    assert finding.fix == "`optimize` makes the work of the program O(steps)"
    assert finding.frame[0] == __file__
    assert finding.severity == "error"
    assert finding.bytes is None


@pytest.mark.parametrize("limit", ["O(steps^2)", "quadratic", "O(n^2)", "O(steps^2 log steps)"])
def test_what_may_grow_is_fine(limit):
    assert found(GrowthOverLimit, written, growth=limit) == []


def default(steps=1024):
    return arguments(steps)


def largest(steps):
    return arguments(steps)


OWN_SIZES = [
    (default, 1024),
    (largest, 256),
    (lambda **sizes: arguments(**{"steps": 32} | sizes), 32),  # only the function knows
    (lambda steps=None: arguments(steps or 16), 16),
]


@pytest.mark.parametrize(("given", "own"), OWN_SIZES)
def test_figures_are_those_of_the_own_arguments_whatever_the_scale(given, own):
    about = subject(stored, given)
    assert about.input_bytes == 4 * own
    assert about.residual_bytes // own**2 == 2 * 4
    assert about.peak_bytes > about.residual_bytes
    assert about.growth.sizes == (64, 128, 256)


def test_no_size_is_traced_twice():
    sizes = []

    def counted(xs):
        sizes.append(xs.size)
        return stored(xs)

    about = subject(counted, lambda steps=128: arguments(steps), growth="O(steps)")
    assert list(GrowthOverLimit().check(about))
    _ = about.residual_bytes
    assert sorted(sizes) == [64, 128, 256]


def test_every_measure_is_looked_at():
    says = [f.says for f in found(GrowthOverLimit, stored, growth="linear")]
    assert [s.split(" in ")[0] for s in says] == [
        "O(steps^2) residuals",
        "O(steps^2) work",
        "O(steps^2) peak memory",
    ]


def test_where_no_pass_helps_the_limit_is_reported():
    finding = found(GrowthOverLimit, stored, growth="O(steps)")[0]
    assert finding.fix.endswith('growth = "O(steps^2)" allows it')
    assert finding.bytes == 2 * 4 * 256**2


def test_residuals_are_superlinear_by_default():
    (finding,) = found(SuperlinearResiduals, stored)
    assert finding.says == "O(steps^2) residuals in cos, sin: faster than O(steps)"
    assert finding.bytes == 2 * 4 * 256**2


def test_a_limit_says_that_it_is_meant():
    assert found(SuperlinearResiduals, stored, growth="O(steps^2)") == []


def test_small_residuals_are_not_reported():
    assert found(SuperlinearResiduals, stored, min_bytes=2**20) == []


def test_small_residuals_are_told_if_they_are_large_at_the_own_size():
    def own(steps=4096):
        return arguments(steps)

    (finding,) = found(SuperlinearResiduals, stored, own, min_bytes=2**26)
    assert finding.reason.endswith("at steps = 64, 128, 256")
    assert found(SuperlinearResiduals, stored, own, min_bytes=2**28) == []


def test_linear_residuals_are_fine():
    assert found(SuperlinearResiduals, written) == []


def test_a_limit_of_another_size():
    with pytest.raises(TargetError, match=r"t: growth is 'O\(N\)': the size is called steps"):
        found(GrowthOverLimit, written, growth="O(N)")


@pytest.mark.parametrize("rule", [GrowthOverLimit, SuperlinearResiduals])
def test_the_examples_of_the_documentation(rule):
    limit = {"growth": "O(steps)"} if rule is GrowthOverLimit else {}
    for title, is_found in (("Example", True), ("Instead", False)):
        scope = {"jax": jax, "jnp": jnp, "lax": lax}
        exec(documentation(rule)[title], scope)
        assert bool(found(rule, scope["loss"], **limit)) == is_found, title


# -- the command line ----------------------------------------------------------------------------


@pytest.fixture
def lint(tmp_path, monkeypatch, capsys):
    (tmp_path / "grows.py").write_text(PROGRAMS)
    monkeypatch.chdir(tmp_path)

    def run(*options, target="grows.py:written", args_from="grows.py:arguments"):
        code = main(["lint", target, "--mode", "gradient", "--args-from", args_from, *options])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def test_growth_is_shown(lint):
    code, out, _ = lint("--scale", "T=64,128,256")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["T=64", "T=128", "T=256", "growth"] in lines
    assert [line[-1] for line in lines if line and line[0] == "work"] == ["O(T^2)"]
    assert max(map(len, out.splitlines())) <= 80


def test_a_limit_is_checked(lint):
    code, out, _ = lint("--scale", "T=64,128,256", "--growth", "linear")
    assert code == 1
    assert f"grows.py:{LINE} in step" in out
    assert "O(T^2) work in scatter: faster than linear" in out


def test_a_budget_is_for_the_own_size(lint):
    options = ["--scale", "T=2,4", "--format", "json", "--select", "JXO601"]
    Path("pyproject.toml").write_text("[tool.jaxpr-opt.lint]\nmax-residual-bytes = 40\n")
    code, out, _ = lint(*options)  # at T = 8; at T = 4 it keeps 24 bytes
    (target,) = json.loads(out)["targets"]
    assert (code, target["findings"][0]["code"]) == (1, "JXO601")
    assert target["figures"]["residual_bytes"] == target["findings"][0]["bytes"] > 40


def test_growth_for_machines(lint):
    code, out, _ = lint("--scale", "T=64,128,256", "--format", "json")
    (target,) = json.loads(out)["targets"]
    assert code == 0
    assert target["growth"]["sizes"] == [64, 128, 256]
    assert target["growth"]["work"]["exponent"] == pytest.approx(2, abs=0.1)
    term = target["growth"]["work"]["terms"][0]
    assert (term["file"], term["line"], term["what"]) == ("grows.py", LINE, "scatter")


def test_growth_in_a_pull_request(lint):
    _, out, _ = lint("--scale", "T=64,128,256", "--format", "markdown")
    assert "`grows.py:written` grows as residuals O(T), work O(T^2), peak memory O(T)." in out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--scale", "T=64,128", "--growth", "O(N)"], "growth is 'O(N)': the size is called T"),
        (["--scale", "T=64,128", "--growth", "fast"], "growth is 'fast': expected O(1), O(log n)"),
        (["--scale", "N=64,128"], "scale needs arguments from a function of N"),
        (["--scale", "64,128"], "expected the name of a size and some values, as T=64,128,256"),
    ],
)
def test_mistakes_are_told_in_one_line(lint, options, says):
    code, out, err = lint(*options)
    assert code == 2
    assert says in " ".join((out + err).split())


def test_a_size_that_does_not_work(lint, tmp_path):
    (tmp_path / "odd.py").write_text(
        "import jax\n"
        "def halves(xs):\n"
        "    return xs.reshape(2, -1).sum(0)\n"
        "def arguments(T):\n"
        "    return (jax.ShapeDtypeStruct((T,), 'float32'),)\n"
    )
    code, out, err = lint("--scale", "T=3,8", target="odd.py:halves", args_from="odd.py:arguments")
    assert code == 2
    assert "odd.py:halves raised while tracing at T=3: TypeError" in " ".join((out + err).split())
