"""`jaxpr-opt run` of scripts that nobody prepared, in processes of their own."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jaxpr_opt
from jaxpr_opt.saving.process import command

ROOT = Path(jaxpr_opt.__file__).resolve().parent.parent
SCRIPTS = Path(__file__).parent / "unprepared"


def run(*words, cwd=SCRIPTS, stdin=""):
    """A finished process of `jaxpr-opt run`, on a terminal of 80 columns that is none."""
    return finished([sys.executable, "-m", "jaxpr_opt", "run", *map(str, words)], cwd, stdin)


def launched(script):
    """What `jaxpr-opt run` becomes, without the second it takes to get there."""
    return finished(command([script], is_module=False))


def finished(line, cwd=SCRIPTS, stdin=""):
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("JAXPR_OPT", "COLUMNS"))}
    environ |= {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    environ |= {"XLA_FLAGS": "--xla_backend_optimization_level=0"}  # half the time to compile
    return subprocess.run(
        line, cwd=cwd, env=environ, input=stdin, capture_output=True, text=True, check=False
    )


def table(process):
    """The lines of the table by the programs they are about."""
    lines = process.stderr.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("program "))
    rows = [line.split() for line in lines[start + 1 :] if re.match(r"\S+ .*\d ", line)]
    return {words[0]: " ".join(words[1:]) for words in rows if words[0] != "and"}


SIX = [
    ("language_model", ("flax", "optax"), "falls", "train_step"),
    ("rnn", ("equinox",), "finite", "train_step"),
    ("neural_ode", ("diffrax",), "solved (1, 3)", "diffeqsolve"),
    ("ppo", (), "updated (4, 2)", "update"),
    ("decoder", (), "decoded (16,)", "decode"),
    ("bayes", ("numpyro",), "losses (20,)", "scan"),
]


@pytest.mark.parametrize(("name", "libraries", "says", "program"), SIX, ids=[s[0] for s in SIX])
def test_the_users_programs_are_in_the_table(name, libraries, says, program):
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    process = launched(f"{name}.py")
    assert (process.returncode, process.stdout) == (0, f"{says}\n"), process.stderr
    assert list(table(process)) == [program]
    assert f"{name}.py:" in process.stderr
    assert "programs of libraries (jax " in process.stderr
    assert max(map(len, process.stderr.splitlines())) <= 80


def test_a_script_that_raises_says_what_it_would_have_said():
    process = run("crashes.py")
    assert process.returncode == 1
    assert process.stdout == "at exit\n"
    assert process.stderr.startswith(
        "Traceback (most recent call last):\n"
        f'  File "{SCRIPTS / "crashes.py"}", line 16, in <module>\n'
        '    raise ValueError("out of data")\n'
        "ValueError: out of data\n"
    )
    assert "once" in table(process)["doubled"]


def test_a_script_that_never_jits():
    process = launched("never_jits.py")
    assert (process.returncode, process.stdout) == (0, "sum True\n")
    assert "No function of yours was compiled." in process.stderr


def test_a_script_with_two_processes_reports_once():
    process = launched("two_processes.py")
    assert (process.returncode, process.stdout) == (
        0,
        "the child says 6.0\nthe parent says 6.0\n",
    )
    assert process.stderr.count("program ") == 1
    assert list(table(process)) == ["doubled"]


def test_the_words_after_the_script_and_its_streams_are_its_own():
    """It says to JAX in its environment what it likes, as it imports JAX itself."""
    process = run("--optimize", "options.py", "--optimize", stdin="word\n")
    assert process.returncode == 7
    assert process.stdout == "True word float64 __main__\n"
    assert "not changed" in table(process)["tripled"]


GAINS = """
import sys, jax, jax.numpy as jnp

@jax.jit
def slope(xs):
    def loss(xs):
        def step(carry, x):
            i, ys = carry
            return (i + 1, ys.at[i].set(jnp.sin(x))), None
        return jnp.sum(jax.lax.scan(step, (0, jnp.zeros_like(xs)), xs)[0][1] ** 2)
    return jax.grad(loss)(xs)

@jax.jit
def other(x):
    return x + 1

slope(jnp.ones(65536)), other(jnp.ones(3)), other(jnp.ones(4))
raise KeyboardInterrupt
"""


def test_what_optimising_gains_is_measured(tmp_path):
    """Also after an interruption, and with a page that lint's findings are on."""
    (tmp_path / "slow.py").write_text(GAINS)
    process = run("--optimize", "--html", "page.html", "slow.py", cwd=tmp_path)
    assert process.returncode == 130
    assert process.stderr.startswith("Traceback")
    shown = table(process)
    assert re.fullmatch(r"slow.py:4 .* → .*s .* → .*s ÷ [\d.]+ .*B( ÷ [\d.]+)?", shown["slope"])
    assert "not changed" in shown["other"]
    overview = (tmp_path / "page.html").read_text()
    assert 'href="page_files/slope.html"' in overview
    assert "2 functions compiled, 1 finding." in overview
    assert re.search(r'data-title="a call"><span>[^<]+→[^<]+<b>÷ [\d.]+</b>', overview)
    assert 'data-title="a call"><span>not changed</span>' in overview
    page = (tmp_path / "page_files" / "slope.html").read_text()
    assert "carried-array-written-a-slice-at-a-time" in page


def test_options_choose_what_is_looked_at_and_when_it_ends(tmp_path):
    (tmp_path / "slow.py").write_text(GAINS)
    process = run("--only", "oth*", "--stop-after", 1, "slow.py", cwd=tmp_path)
    assert process.returncode == 0  # it never came to the interruption
    assert list(table(process)) == ["other"]
    assert "once" in table(process)["other"]


def test_programs_are_saved_and_read_elsewhere(tmp_path):
    """In a folder where the script is not; the finding is at its line."""
    from jaxpr_opt.saving.read import load

    (tmp_path / "slow.py").write_text(GAINS)
    process = run("--save", "programs", "slow.py", cwd=tmp_path)
    assert "saved 2 programs to programs" in process.stderr
    read = load(tmp_path / "programs" / "slope.json")
    assert read.begins == (str(Path.cwd() / "slow.py"), 4, "slope")
    found = jaxpr_opt.lint(read, *read.arguments)
    assert [(Path(each.frame[0]).name, each.frame[1]) for each in found] == [("slow.py", 9)]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "name a script, as train.py, or a module, as -m package.train"),
        (["no.py"], "there is no file no.py"),
        (["ppo"], "there is no file ppo; for a module, write -m ppo"),
        (["."], ". is a folder: name a script in it, or a module with -m"),
        (["--optimise", "ppo.py"], "jaxpr-opt run has no option --optimise; did you mean"),
        (["--stop-after", "0", "ppo.py"], "expected a positive number, got '0'"),
    ],
)
def test_mistakes_are_one_line(words, says, capsys, monkeypatch):
    from jaxpr_opt.cli import main

    monkeypatch.chdir(SCRIPTS)
    assert main(["run", *words]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_budget_that_is_none_is_one_line(capsys, monkeypatch):
    from jaxpr_opt.cli import main

    monkeypatch.chdir(SCRIPTS)
    monkeypatch.setenv("JAXPR_OPT_MEMORY", "12 GiG")
    assert main(["run", "ppo.py"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("jaxpr-opt: error: JAXPR_OPT_MEMORY='12 GiG': expected bytes, as 65536")
    assert err.count("\n") == 1


def test_a_notebook_is_no_script(tmp_path, capsys):
    from jaxpr_opt.cli import main

    (tmp_path / "a.ipynb").write_text(json.dumps({}))
    assert main(["run", str(tmp_path / "a.ipynb")]) == 2
    assert "jupyter nbconvert --to script" in capsys.readouterr().err
