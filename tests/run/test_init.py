"""`jaxpr-opt init` and `lint` in sequence: CI in two commands."""

import tomllib

import jax.numpy as jnp
import pytest

from jaxpr_opt.cli import main
from jaxpr_opt.errors import TargetError
from jaxpr_opt.lint.config import read
from jaxpr_opt.lint.subject import subject
from jaxpr_opt.run.new_targets import added, rounded_up
from jaxpr_opt.sizes import parse_bytes

FUNCTIONS = """
import sys
import jax, jax.numpy as jnp

@jax.jit
def slope(w, xs):
    return jax.grad(lambda w: jnp.sum(jnp.tanh(xs @ w)))(w)

@jax.jit
def evaluate(w, xs):
    return xs @ w
"""
SCRIPT = f"""{FUNCTIONS}
for n in map(int, sys.argv[1:]):
    evaluate(jnp.ones(3), jnp.ones((n, 3))), slope(jnp.ones(3), jnp.ones((n, 3)))
print("done")
"""
MINE = '[project]\nname = "x"    # mine\n[tool.jaxpr-opt.lint]\nmin-bytes = "1 kB"'


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "pyproject.toml").write_text(MINE)
    return tmp_path


def test_what_a_script_compiles_is_checked_from_then_on(project, capfd):
    """Budgets are what was measured of the largest; what is there stays; nothing is there twice."""
    file = project / "pyproject.toml"
    assert main(["init", "train.py", "64", "8"]) == 0
    told = capfd.readouterr().out
    assert told.startswith("done\nwrote 2 targets to pyproject.toml: evaluate, slope\n")
    assert file.read_text().startswith(f"{MINE}\n\n[tool.jaxpr-opt.lint.targets.evaluate]\n")
    targets = tomllib.loads(file.read_text())["tool"]["jaxpr-opt"]["lint"]["targets"]
    module = {}
    exec(FUNCTIONS, module)
    largest = subject(module["slope"], jnp.ones(3), jnp.ones((64, 3)))
    kept = rounded_up(largest.residual_bytes)
    assert targets["slope"] == {
        "run": "train.py 64 8",
        "program": "slope",
        "max-peak-bytes": rounded_up(largest.peak_bytes),
        "max-residual-bytes": kept,
    }
    assert "max-residual-bytes" not in targets["evaluate"]
    assert main(["lint"]) == 0
    assert f"slope  residuals {kept}" in capfd.readouterr().out
    before = file.read_text()
    assert main(["init", "train.py", "32"]) == 0
    assert file.read_text() == before
    (project / "other.py").write_text(SCRIPT)
    assert main(["init", "--stop-after", "1", "other.py", "4"]) == 0
    assert "wrote 1 target to pyproject.toml: other-evaluate\n" in capfd.readouterr().out
    assert file.read_text().endswith(
        '[tool.jaxpr-opt.lint.targets.other-evaluate]\nrun = "other.py 4"\n'
        'stop-after = 1\nprogram = "evaluate"\nmax-peak-bytes = "76 B"\n'
    )
    file.write_text(before.replace("train.py 64 8", "train.py 128 8"))
    assert main(["lint"]) == 1
    assert "residual-budget" in capfd.readouterr().out
    file.write_text(before.replace('"slope"', '"slop"').replace("64 8", "4"))
    assert main(["lint"]) == 2
    assert "train.py 4 compiles no 'slop'; did you mean 'slope'?" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train.py", "many"], "train.py many ended with exit code 1"),
        (["train.py"], "train.py compiled no function of yours"),
        (["tain.py"], "there is no file tain.py"),
    ],
)
def test_nothing_is_written_where_nothing_was_compiled(project, words, says, capfd):
    assert main(["init", *words]) == 2
    assert says in capfd.readouterr().err
    assert (project / "pyproject.toml").read_text() == MINE


def test_it_is_for_the_folder_of_the_project(project, monkeypatch, capsys):
    (project / "sub").mkdir()
    monkeypatch.chdir(project / "sub")
    (project / "sub" / "train.py").write_text(SCRIPT)
    assert main(["init", "train.py", "4"]) == 2
    assert f"write targets from {project}, where pyproject.toml is" in capsys.readouterr().err


def test_a_file_that_takes_no_tables_stays(tmp_path):
    """Its targets are in line: TOML lets nobody add to that."""
    file = tmp_path / "pyproject.toml"
    file.write_text("[tool.jaxpr-opt.lint]\ntargets = {}\n")
    with pytest.raises(TargetError, match="takes no further targets"):
        added(file, {"a": '[tool.jaxpr-opt.lint.targets.a]\nrun = "a.py"\n'})


@pytest.mark.parametrize("value", [0, 999, 1000, 1001, 99_949, 999_999, 1_000_001, 3 * 10**11 + 1])
def test_a_budget_is_not_less_than_what_was_measured(value):
    limit = parse_bytes(rounded_up(value))
    assert value <= limit <= value * 1.01


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ('run = "a.py"', "program is missing"),
        ('run = 3\nprogram = "f"', "run is 3"),
        ('run = "a.py"\nprogram = "f"\nmode = "gradient"', "mode is for a function, and"),
        ('run = "a.py"\nprogram = "f"\nfunction = "a.py:f"', "function is for a function, and"),
        ('run = "a.py"\nprogram = "f"\nstop-after = "2"', "expected a number of programs"),
    ],
)
def test_mistakes_in_the_table_are_reported(table, says, tmp_path):
    with pytest.raises(TargetError, match=says):
        read(f"[tool.jaxpr-opt.lint.targets.f]\n{table}\n", tmp_path / "pyproject.toml")
