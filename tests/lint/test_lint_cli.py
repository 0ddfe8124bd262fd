"""`jaxpr-opt lint` and `jaxpr-opt rule`, as their users see them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from jaxpr_opt.cli import main
from tests.lint.programs import KEPT

SOURCE = Path("tests/lint/programs.py").resolve()

PROJECT = """
[tool.jaxpr-opt.lint.targets.step]
function = "lint_model.py:loss"
args = "lint_model.py:arguments"
mode = "gradient"
max-residual-bytes = {warn = 1000, fail = 2000}
"""


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """Run a command line in a folder with a project: `(exit code, stdout, stderr)`."""
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "lint_model.py").write_text(SOURCE.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for variable in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(variable, raising=False)

    def run(*argv):
        code = main(list(argv))
        return code, *capsys.readouterr()

    yield run
    forget()


def edit(old, new, file="lint_model.py"):
    from jaxpr_opt.lint.suppress import comments

    path = Path(file)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    forget()
    comments.cache_clear()


def forget():
    """The module, under the name or the path it was loaded as."""
    for name in ("lint_model", str(Path("lint_model.py").resolve())):
        sys.modules.pop(name, None)


BOOM = '    raise ValueError("no | good *at* <all>")'
STEP = "step  residuals 4.1 kB, 1.8 times the inputs; peak 7.3 kB; donated 0 B\n"
SMALL = "Residuals below 1 MiB are not reported (min-bytes).\n"
SIN = "h = jnp.sin(w @ carry + x)"


def codes(out):
    return [f["code"] for t in json.loads(out)["targets"] for f in t["findings"]]


# -- what is found


def test_the_targets_of_the_project(run):
    code, out, err = run("lint")
    assert (code, err) == (1, "")
    assert out.startswith("step  residuals 4.1 kB, 1.8 times the inputs; peak")
    assert "lint_model.py:" in out
    assert "error JXO601 residual-budget" in out
    assert out.endswith("1 finding in 1 target.\n")


def test_a_clean_target(run):
    code, out, err = run("lint", "step", "--ignore", "residual-budget")
    assert (code, err) == (0, "")
    assert out == f"{STEP}No findings in 1 target.\n{SMALL}"
    assert run("lint", "step", "--select", "JXO602,JXO603")[0] == 0
    assert run("lint", "step", "--exit-zero")[0] == 0


def test_a_note_does_not_fail(run):
    edit("fail = 2000", "fail = 20000", "pyproject.toml")
    code, out, _ = run("lint", "step")
    assert code == 0
    assert "note JXO601 residual-budget" in out


def test_a_function_and_its_arguments(run):
    given = ("--args", "f32[8,8]", "f32[64,8]", "--mode", "gradient")
    code, out, _ = run("lint", "lint_model.py:loss", *given, "--format", "json")
    assert code == 0
    (target,) = json.loads(out)["targets"]
    assert (target["target"], target["findings"]) == ("lint_model.py:loss", [])
    assert target["figures"]["residual_bytes"] == KEPT
    given = ("--args-from", "lint_model.py:arguments", "--mode", "gradient", "--argnums", "0,1")
    assert json.loads(run("lint", "lint_model.py:loss", *given, "--format", "json")[1])
    given = ("--args", "f32[8,8]", "f32[64,8]", "--grad", "--statistics")
    titles, figures = run("lint", "lint_model.py:loss", *given)[1].splitlines()[-5:-3]
    assert titles.split() == ["target", "inputs", "residuals", "peak,", "estimated", "donated"]
    assert figures.split()[:5] == ["lint_model.py:loss", "2.3", "kB", "4.1", "kB"]


def test_a_file(run):
    code, out, err = run("lint", "lint_model.py", "--format", "json")
    assert [t["target"] for t in json.loads(out)["targets"]] == [
        "marked",
        "lint_model.py:below",
        "lint_model.py:unmarked",
    ]
    assert code == 2
    assert err == (
        "jaxpr-opt: error: lint_model.py:unmarked takes (w, xs): missing a required argument:"
        " 'w'; give arguments with --args or --args-from, or mark it:"
        " @jaxpr_opt.lint_target(args=...)\n"
    )


def test_one_target_that_cannot_be_traced_does_not_hide_the_others(run):
    code, out, err = run("lint", "step", "lint_model.py:boom", "--args", "1.0")
    assert code == 2
    assert "JXO601" in out
    assert out.endswith("1 finding in 1 target, 1 could not be traced.\n")
    assert err.startswith("jaxpr-opt: error: lint_model.py:boom raised while tracing: ValueError")
    assert run("lint", "lint_model.py:boom", "--args", "1.0")[1] == ""
    with pytest.raises(Exception, match="raised while tracing"):
        run("lint", "lint_model.py:boom", "--args", "1.0", "--traceback")


def test_what_cannot_be_traced_is_annotated_at_its_line(run, monkeypatch):
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    line = 1 + Path("lint_model.py").read_text().splitlines().index(BOOM)
    given = ("lint", "lint_model.py:boom", "--args", "1.0", "--format")
    _, out, _ = run(*given, "github")
    assert out.startswith(f"::error file=lint_model.py,line={line},title=jaxpr-opt%3A lint_model")
    (invocation,) = json.loads(run(*given, "sarif")[1])["runs"][0]["invocations"]
    (location,) = invocation["toolExecutionNotifications"][0]["locations"]
    assert location["physicalLocation"]["region"] == {"startLine": line}


def test_arguments_that_do_not_fit_are_annotated_at_the_function(run, monkeypatch):
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    line = 1 + Path("lint_model.py").read_text().splitlines().index("def loss(w, xs):")
    _, out, _ = run("lint", "lint_model.py:loss", "--args", "1.0", "--format", "github")
    assert out.startswith(f"::error file=lint_model.py,line={line},")


def test_arguments_that_cannot_be_read_name_their_target(run):
    wrong = PROJECT.replace('"lint_model.py:arguments"', '["f32[3"]')
    Path("pyproject.toml").write_text(wrong)
    code, _, err = run("lint")
    assert code == 2
    assert err.startswith("jaxpr-opt: error: step: args: cannot read the argument 'f32[3': write")


def test_a_target_that_is_not_there_hides_no_other(run, monkeypatch):
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    table = PROJECT.replace("targets.step", "targets.gone").replace(":loss", ":los")
    Path("pyproject.toml").write_text(PROJECT + table)
    line = 2 + PROJECT.count("\n")
    code, out, err = run("lint")
    assert code == 2
    assert "JXO601" in out
    assert err == (
        "jaxpr-opt: error: gone: lint_model.py has no attribute 'los'; did you mean 'loss'?\n"
    ).replace("lint_model.py", str(Path("lint_model.py").resolve()))
    _, out, _ = run("lint", "--format", "github")
    assert out.startswith(f"::error file=pyproject.toml,line={line},title=jaxpr-opt%3A gone::")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("async def f(x):\n    return x", " is a coroutine: JAX traces functions that return"),
        ("def f(x):\n    yield x", " is a generator: JAX traces functions that return arrays"),
        ("def f(name):\n    return name.upper()", ": f returned a str: JAX traces functions that"),
        ("class f:\n    def __init__(self, x):\n        pass", ": f returned a f: JAX traces"),
        ("def f(name):\n    return None", " takes no arrays and returns none: there is"),
    ],
)
def test_what_is_no_function_of_arrays_is_an_error(run, function, says):
    given = '("jax",)' if "name" in function else "(1.0,)"
    Path("other_model.py").write_text(f"{function}\n\ndef given():\n    return {given}\n")
    code, out, err = run("lint", "other_model.py:f", "--args-from", "other_model.py:given")
    sys.modules.pop("other_model", None)
    assert (code, out) == (2, "")
    assert err.startswith(f"jaxpr-opt: error: other_model.py:f{says}")


def test_growth_names_the_value_and_the_line(run):
    run("lint", "step", "--format", "json", "--output", "main.json")
    edit("return h, h.sum()", "return h, jnp.exp(h).sum()")
    edit("fail = 2000", "fail = 20000", "pyproject.toml")
    _, out, _ = run("lint", "step", "--against", "main.json", "--format", "json")
    told = [f for f in json.loads(out)["targets"][0]["findings"] if f["code"] == "JXO603"]
    residuals, peak = sorted((f["says"], f["reason"], f["line"]) for f in told)
    assert residuals[0].startswith("residuals have grown from 4.1 kB to 6.1")
    assert residuals[0].endswith("most of it in `exp`: 2.05 kB more")
    assert residuals[1] == "was 4.1 kB in main.json"
    assert "most of it in `exp`: 2.0" in peak[0]
    for *_, line in (residuals, peak):
        assert "jnp.exp" in Path("lint_model.py").read_text().splitlines()[line - 1]


def test_sizes_are_told_as_they_were_written(run):
    edit("{warn = 1000, fail = 2000}", '"1 KiB"', "pyproject.toml")
    assert "keeps 4.1 kB (4 KiB), over the budget of 1 KiB\n" in run("lint")[1]


def test_every_target_tells_its_figures(run):
    _, out, _ = run("lint", "lint_model.py:loss", "--args", "f32[8,8]", "f32[4,8]")
    assert out.startswith("lint_model.py:loss\n  as a loss; residuals 256 B, 0.67 times the inputs")
    _, out, _ = run("lint", "lint_model.py:loss", "--args", "f32[8,8]", "f32[4,8]", "--mode=as-is")
    assert out.startswith("lint_model.py:loss  no gradient; peak ")


# -- what is known


def test_a_comment_suppresses_and_is_told_where_it_does_not(run):
    edit(SIN, f"{SIN}  # jaxpr-opt: ignore[residual-budget]")
    assert run("lint") == (0, f"{STEP}No findings in 1 target, 1 suppressed.\n{SMALL}", "")
    edit("2000}", "20000}\nmin-bytes = 1", "pyproject.toml")
    edit("warn = 1000, ", "", "pyproject.toml")
    code, out, _ = run("lint")
    assert code == 0
    assert "note JXO001 unused-suppression" in out
    assert "residual-budget reports nothing here" in out
    edit("[residual-budget]", "[residual-budgte]")
    assert "there is no rule 'residual-budgte'; did you mean 'residual-budget'?" in run("lint")[1]
    edit("[residual-budgte]", "")
    assert "this comment does not say what to ignore" in run("lint")[1]
    assert run("lint", "--ignore", "unused-suppression")[1] == f"{STEP}No findings in 1 target.\n"


def test_a_comment_on_a_line_nothing_comes_from_is_nobodys(run):
    edit("def boom(x):", "def boom(x):  # jaxpr-opt: ignore[residual-budget]")
    assert "JXO001" not in run("lint")[1]


def test_paths_and_targets_suppress(run):
    edit("[tool", '[tool.jaxpr-opt.lint]\nper-path-ignores = {"*_model.py" = ["JXO6"]}\n[tool',
         "pyproject.toml")  # fmt: skip
    assert run("lint")[:2] == (0, f"{STEP}No findings in 1 target, 1 suppressed.\n{SMALL}")
    edit('{"*_model.py" = ["JXO6"]}', "{}", "pyproject.toml")
    assert run("lint")[0] == 1
    edit('mode = "gradient"', 'mode = "gradient"\nignore = ["JXO6"]', "pyproject.toml")
    assert run("lint")[:2] == (0, f"{STEP}No findings in 1 target, 1 suppressed.\n{SMALL}")


def test_a_baseline_is_written_and_read(run):
    known = ("--baseline", "known.json")
    assert run("lint", *known, "--update-baseline") == (
        0,
        "known.json: 1 finding in 1 target\n",
        "",
    )
    assert run("lint", *known) == (0, f"{STEP}No findings in 1 target, 1 suppressed.\n{SMALL}", "")
    edit("import jaxpr_opt", "import jaxpr_opt\n# a line more\n")
    assert run("lint", *known)[0] == 0
    edit("steps=STEPS", "steps=2 * STEPS")
    code, out, _ = run("lint", *known, "--format", "json")
    assert (code, sorted(codes(out))) == (1, ["JXO601", "JXO603", "JXO603"])
    run("lint", *known, "--update-baseline")
    assert run("lint", *known)[0] == 0


def test_against_another_revision_only_regressions_fail(run):
    run("lint", "--format", "json", "--output", "main.json")
    assert run("lint", "--against", "main.json")[0] == 0
    assert run("lint", "--against", "main.json", "--format", "json", "--output", "now.json")[0] == 0
    assert run("lint", "--against", "now.json")[0] == 0  # what is known stays known
    edit("steps=STEPS", "steps=2 * STEPS")
    code, out, _ = run("lint", "--against", "main.json", "--select", "JXO603")
    assert code == 1
    assert "residuals have grown from 4.1 kB to 8.19 kB" in out


def test_the_baseline_of_the_project(run):
    edit("[tool", '[tool.jaxpr-opt.lint]\nbaseline = "known.json"\n[tool', "pyproject.toml")
    assert run("lint")[2] == (
        f"jaxpr-opt: error: cannot read {Path.cwd() / 'known.json'}: No such file or directory\n"
    )
    assert run("lint", "--update-baseline")[0] == 0
    assert run("lint")[0] == 0


def test_a_baseline_is_not_written_for_what_cannot_be_traced(run):
    command = ("lint", "lint_model.py:boom", "--args", "1.0", "--baseline", "b.json")
    code, _, err = run(*command, "--update-baseline")
    assert code == 2
    assert err.startswith("jaxpr-opt: error: b.json stays as it was: lint_model.py:boom raised")
    assert not Path("b.json").exists()


# -- output


def test_output_goes_to_a_file(run):
    code, out, _ = run("lint", "--format", "sarif", "--output", "lint.sarif")
    assert (code, out) == (1, "jaxpr-opt lint: 1 finding in 1 target\n")
    assert json.loads(Path("lint.sarif").read_text())["version"] == "2.1.0"
    run("lint", "--output", "lint.txt", "--statistics")
    assert Path("lint.txt").read_text() == run("lint", "--statistics")[1]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--mode", "grad"], "--mode is 'grad': expected one of as-is, gradient, train-step"),
        (["--argnums", "0"], "--argnums is for gradients: add --mode gradient"),
        (["--mode", "gradient", "--argnums", "x"], "--argnums 'x': write argument positions"),
        (["--mode", "gradient", "--argnums", "0,0"], "--argnums is [0, 0]: expected argument"),
        (["--scale", "64"], "--scale is '64': expected the name of a size and some values"),
        (["--growth", "O(T)"], "lint_model.py:loss: growth needs a scale, as T=64,128,256"),
        (["--select", "residual-budgt"], "--select: there is no rule 'residual-budgt'; did you"),
        (["--ignore", "JX"], "--ignore: there is no rule 'JX': `jaxpr-opt rule` lists them"),
        (["--config", "no.toml"], "cannot read no.toml: No such file or directory"),
        (["--output", "no/where"], "cannot write no/where: No such file or directory"),
        (["--against", "no.json"], "cannot read no.json: No such file or directory"),
        (["--against", "pyproject.toml"], "pyproject.toml is not a baseline: write one with"),
        (["--baseline", "a", "--against", "b"], "argument --against: not allowed with argument"),
        (["--against", "b", "--update-baseline"], "--against is another revision's"),
        (["--update-baseline"], "--update-baseline needs a file: add --baseline FILE"),
        (["--write", "sarf=x"], "--write 'sarf=x': expected FORMAT=FILE, a format of text"),
        (["--statistics", "--format", "json"], "--statistics is for text"),
    ],
)
def test_what_makes_no_sense_is_one_line(run, argv, message):
    args = ("--args-from", "lint_model.py:arguments")
    code, out, err = run("lint", "lint_model.py:loss", *args, *argv)
    assert (code, out) == (2, "")
    assert err.startswith(f"jaxpr-opt: error: {message}")
    assert err.count("\n") == 1


def test_a_baseline_of_another_time(run):
    Path("old.json").write_text('{"version": 99, "targets": []}')
    assert run("lint", "--baseline", "old.json")[2] == (
        "jaxpr-opt: error: old.json is of version 99: expected 1\n"
    )


# -- rules


def test_rules_are_listed_by_family(run):
    code, out, err = run("rule")
    assert (code, err) == (0, "")
    assert out.startswith("comments\nJXO001 unused-suppression\n  A comment")
    assert "\n\ngrowth and budgets\nJXO601 residual-budget\n" in out


def test_the_page_of_a_rule(run):
    code, out, _ = run("rule", "jxo601")
    assert code == 0
    assert out.startswith(
        "JXO601 residual-budget\ngrowth and budgets; error; on by default\n\nWhat\nThe gradient"
    )
    assert '\n\nExample\n[tool.jaxpr-opt.lint.targets.step]\nfunction = "model.py:loss"\n' in out
    assert out == run("rule", "residual-budget")[1]
    assert max(map(len, out.splitlines())) <= 80


def test_rules_for_machines(run):
    told = json.loads(run("rule", "JXO601", "--format", "json")[1])
    assert (told["rule"], told["family"], told["default"]) == (
        "residual-budget",
        "growth and budgets",
        True,
    )
    assert told["why"].startswith("a training step usually")
    assert told in json.loads(run("rule", "--format", "json")[1])


def test_a_rule_that_is_not_there(run):
    assert run("rule", "residual-budgt") == (
        2,
        "",
        "jaxpr-opt: error: there is no rule 'residual-budgt'; did you mean 'residual-budget'?\n",
    )
