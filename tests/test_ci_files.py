"""The GitHub Action and the pre-commit hook: their commands are run as they are written."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from jaxpr_opt.lint import config
from tests.lint import sarif

yaml = pytest.importorskip("yaml", reason="pip install pyyaml")

ROOT = Path(__file__).parent.parent

PROJECT = """
[tool.jaxpr-opt.lint.targets.grows]
function = "programs.py:written"
args = "programs.py:arguments"
mode = "gradient"
scale = "T=64,128,256"
growth = "{growth}"
"""

PROGRAMS = """
import jax
import jax.numpy as jnp
from jax import lax

def written(xs):
    step = lambda ys, i: (ys.at[i].set(jnp.sin(xs[i])), None)
    return jnp.sum(lax.scan(step, jnp.zeros_like(xs), jnp.arange(xs.size))[0] ** 2)

def arguments(T=8):
    return (jax.ShapeDtypeStruct((T,), "float32"),)
"""


@pytest.fixture
def project(tmp_path):
    """A project whose gradient may grow so fast, where `jaxpr-opt` is this one."""

    def make(growth):
        (tmp_path / "pyproject.toml").write_text(PROJECT.format(growth=growth))
        (tmp_path / "programs.py").write_text(PROGRAMS)
        command = tmp_path / "bin" / "jaxpr-opt"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\necho >> runs; exec "{sys.executable}" -m jaxpr_opt "$@"\n')
        command.chmod(0o755)
        return tmp_path

    return make


def run(command, folder, **variables):
    path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    env = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)} | variables
    return subprocess.run(command, check=False, cwd=folder, env=env, capture_output=True, text=True)


# -- the action ----------------------------------------------------------------------------------

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}


def filled(text, folder, **inputs):
    """`${{ inputs.targets }}` and the like as GitHub fills them in."""
    given = {name: each["default"] for name, each in ACTION["inputs"].items()} | inputs
    known = {f"inputs.{name}": value for name, value in given.items()}
    known |= {"github.action_path": str(ROOT), "runner.temp": str(folder)}
    return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda match: known[match[1]], text)


def lint(folder, **inputs):
    """Run the step; what it prints, and what it tells the steps after it."""
    step = STEPS["Lint"]
    env = {name: filled(value, folder, **inputs) for name, value in step["env"].items()}
    told = {name: str(folder / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    shell = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]
    done = run(shell, folder, **env, **told, RUNNER_TEMP=str(folder))
    return done, Path(told["GITHUB_OUTPUT"]).read_text().strip()


def test_the_action_annotates_lines_and_fails(project):
    folder = project("O(T)")
    done, told = lint(folder, sarif="true")
    assert done.returncode == 1, done.stderr
    assert told == "exit-code=1"
    assert "::error file=programs.py,line=7,title=JXO611 growth-over-limit (grows)" in done.stdout
    assert "O(T^2) work in scatter" in (folder / "GITHUB_STEP_SUMMARY").read_text()
    path = filled(STEPS["Upload"]["with"]["sarif_file"], folder)
    assert "JXO611" in Path(path).read_text()
    sarif.check(json.loads(Path(path).read_text()))
    assert len((folder / "runs").read_text().splitlines()) == 1  # programs are traced once


def test_the_action_passes(project):
    done, told = lint(project("O(T^2)"))
    assert (done.returncode, told) == (0, "exit-code=0"), done.stdout


def test_targets_and_options_of_the_action(project):
    folder = project("O(T)")
    done, told = lint(folder, targets="grows", options="--select JXO6 --ignore JXO611")
    assert (done.returncode, told) == (0, "exit-code=0"), done.stdout


def test_a_target_that_is_not_there(project):
    done, told = lint(project("O(T)"), targets="elsewhere")
    assert (done.returncode, told) == (2, "exit-code=2")


def test_what_the_action_installs_is_itself():
    install = STEPS["Install"]
    assert filled(filled(install["env"]["INSTALL"], ROOT), ROOT) == str(ROOT)
    assert shlex.split(install["run"])[:4] == ["python", "-m", "pip", "install"]
    assert (ROOT / "pyproject.toml").is_file()


def test_inputs_that_are_used_are_declared():
    text = (ROOT / "action.yml").read_text()
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == ACTION["inputs"].keys()
    assert all(each["description"] for each in ACTION["inputs"].values())


# -- the hook ------------------------------------------------------------------------------------

(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())


@pytest.mark.parametrize(("growth", "code"), [("O(T)", 1), ("O(T^2)", 0)])
def test_the_hook(project, growth, code):
    done = run(shlex.split(HOOK["entry"]), project(growth))
    assert done.returncode == code, done.stderr
    assert ("JXO611" in done.stdout) == bool(code)


def test_the_hook_is_told_no_files():
    assert HOOK["pass_filenames"] is False
    assert re.search(HOOK["files"], "a/b.py")
    assert re.search(HOOK["files"], "pyproject.toml")
    assert not re.search(HOOK["files"], "README.md")


# -- their documentation -------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "ci.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_what_the_page_says_of_the_action_and_the_hook():
    steps, hooks = map(yaml.safe_load, blocks("yaml"))
    (ours,) = [step for step in steps if "jaxpr-opt" in step.get("uses", "")]
    assert ours["with"].keys() <= ACTION["inputs"].keys()
    assert hooks[0]["hooks"] == [{"id": HOOK["id"]}]


def test_the_settings_on_the_page(tmp_path):
    (tmp_path / "pyproject.toml").write_text(*blocks("toml"))
    (target,) = config.load(tmp_path / "pyproject.toml").targets.values()
    assert (target.spec.growth, target.spec.scale.sizes) == ("O(T)", (64, 128, 256))
