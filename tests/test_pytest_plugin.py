"""The pytest plugin, on projects of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

import pytest_jaxpr_opt

pytest_plugins = ["pytester"]

PROJECT = """
[tool.pytest.ini_options]
{options}

[tool.jaxpr-opt.lint]
select = ["JXO6"]

[tool.jaxpr-opt.lint.targets.fine]
function = "programs.py:written"
args = "programs.py:arguments"

[tool.jaxpr-opt.lint.targets.grows]
function = "programs.py:written"
args = "programs.py:arguments"
mode = "gradient"
scale = "T=64,128,256"
growth = "O(T)"

[tool.jaxpr-opt.lint.targets.broken]
function = "programs.py:nowhere"
"""

PROGRAMS = """
import jax
import jax.numpy as jnp
from jax import lax

def written(xs):
    def step(ys, i):
        return ys.at[i].set(jnp.sin(xs[i])), None
    return jnp.sum(lax.scan(step, jnp.zeros_like(xs), jnp.arange(xs.size))[0] ** 2)

def arguments(T=8):
    return (jax.ShapeDtypeStruct((T,), "float32"),)
"""

TESTS = """
def test_something():
    pass
"""


@pytest.fixture
def project(pytester):
    """Run pytest on a project with these pytest options."""

    def run(*args, options=""):
        pytester.path.joinpath("pyproject.toml").write_text(PROJECT.format(options=options))
        pytester.path.joinpath("programs.py").write_text(PROGRAMS)
        pytester.path.joinpath("test_it.py").write_text(TESTS)
        return pytester.runpytest_inprocess(
            "-p", "pytest_jaxpr_opt", "-p", "no:cacheprovider", *args
        )

    return run


def test_targets_are_tests(project):
    result = project("--jaxpr-opt-lint", "-v")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines_random(
        [
            "pyproject.toml::fine PASSED*",
            "pyproject.toml::grows FAILED*",
            "test_it.py::test_something PASSED*",
            "*jaxpr-opt lint: grows*",
            "FAILED pyproject.toml::grows - JXO611 growth-over-limit: O(T^2) work in*",
            "programs.py:8 in step",
            "  error JXO611 growth-over-limit",
            "  O(T^2) work in scatter*: faster than O(T)",
            "*programs.py has no attribute 'nowhere'*",
        ]
    )
    assert "Traceback" not in result.stdout.str()


def test_without_the_option_nothing_changes(project):
    project().assert_outcomes(passed=1)


def test_the_setting_is_for_whole_runs(project):
    options = "jaxpr_opt_lint = true"
    project(options=options).assert_outcomes(passed=2, failed=2)
    project("test_it.py", options=options).assert_outcomes(passed=1)


def test_targets_are_added_to_what_is_named(project):
    project("--jaxpr-opt-lint", "test_it.py").assert_outcomes(passed=2, failed=2)


def test_one_target(project):
    project("--jaxpr-opt-lint", "pyproject.toml::fine").assert_outcomes(passed=1)


def test_selection(project):
    project("--jaxpr-opt-lint", "-k", "grows").assert_outcomes(failed=1, deselected=3)
    result = project("--jaxpr-opt-lint", "--strict-markers", "-m", "not jaxpr_opt_lint")
    result.assert_outcomes(passed=1, deselected=3)


def test_what_is_wrong_with_the_file_is_reported(project, pytester):
    project()
    pytester.path.joinpath("pyproject.toml").write_text("[tool.jaxpr-opt.lint]\nselct = []\n")
    result = pytester.runpytest_inprocess("-p", "pytest_jaxpr_opt", "--jaxpr-opt-lint")
    result.stdout.fnmatch_lines(["*unknown setting 'selct'; did you mean 'select'?*"])
    assert result.ret != 0


def test_no_targets(project, pytester):
    project()
    pytester.path.joinpath("pyproject.toml").write_text("[tool.jaxpr-opt.lint]\n")
    result = pytester.runpytest_inprocess("-p", "pytest_jaxpr_opt", "--jaxpr-opt-lint")
    result.stdout.fnmatch_lines(["*there is no [[]tool.jaxpr-opt.lint.targets.NAME[]]*"])


def test_no_project(pytester):
    pytester.makepyfile(test_it=TESTS)
    result = pytester.runpytest_inprocess("-p", "pytest_jaxpr_opt", "--jaxpr-opt-lint")
    result.stderr.fnmatch_lines(["*--jaxpr-opt-lint: there is no pyproject.toml in *"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_distributed(project):
    project("--jaxpr-opt-lint", "-n", "2").assert_outcomes(passed=2, failed=2)


def test_the_plugin_does_not_import_jax():
    """Else a conftest.py could not configure JAX any more."""
    code = "import sys, pytest_jaxpr_opt; sys.exit('jax' in sys.modules)"
    root = Path(pytest_jaxpr_opt.__file__).parent
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)
