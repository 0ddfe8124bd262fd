"""The command line, in process on a module written for it, and in processes of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jaxpr_opt
from jaxpr_opt.cli import main

ROOT = Path(jaxpr_opt.__file__).resolve().parent.parent

PROGRAMS = """
import jax
import jax.numpy as jnp
import jaxpr_opt
from examples.bounded_while import loss as bounded, make_params

LIMIT = 3

def loss(params, x, steps):
    return bounded(params, x, steps, bound=4)

optimized_loss = jaxpr_opt.optimize(loss)

def arguments():
    shape = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype)
    return jax.tree.map(shape, make_params(8)), shape(jnp.ones((1, 1))), 3

def with_keywords():
    return (jax.ShapeDtypeStruct((3,), "float32"),), {"scale": 2.0}

def wide():
    return (jax.ShapeDtypeStruct((3,), "float64"),)

def not_a_tuple():
    return [1.0]

def smooth(x, *, scale=1.0):
    return jnp.sum(jnp.sin(x) * scale)

def tripled(x):
    return x + x + x

def product(x, y):
    return x @ y

def draw(key):
    return jax.random.uniform(key)

def leaves(x=None):
    raise SystemExit(3)

def boom(x):
    raise ValueError("no good\\nat all")

class Model:
    @staticmethod
    def apply(x):
        return x * 2
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli")
    (path / "cli_programs.py").write_text(PROGRAMS)
    (path / "cli_broken.py").write_text("x = 1\nimport cli_programs, not_there_at_all\n")
    (path / "cli_unfinished.py").write_text("def f(:\n")
    (path / "cli_raises.py").write_text("def f():\n    raise SystemExit(3)\nf()\n")
    (path / "json.py").write_text("def f(x):\n    return x\n")  # a name that is taken
    return path


@pytest.fixture
def run(folder, capsys, monkeypatch):
    """Run a command line in the folder of the programs: `(exit code, stdout, stderr)`."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for variable in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE", "JAXPR_OPT_DISABLE"):
        monkeypatch.delenv(variable, raising=False)

    def run(*argv):
        code = main(list(argv))
        return code, *capsys.readouterr()

    return run


BOUNDED = ("--args-from", "cli_programs:arguments")
LOOPS = "collapse_loops, count-steps,exit-loop-early"


# -- diff


def test_diff_shows_both_programs_and_a_table(run):
    code, out, err = run("diff", "cli_programs.py:loss", *BOUNDED, "--grad")
    assert (code, err) == (0, "")
    gutters = {line[0] for line in out.partition("\n\n")[0].splitlines()}
    assert gutters == {" ", "-", "+"}
    assert "scan[4" in out
    table = out.partition("\n\n")[2].splitlines()
    assert table[0].split() == ["before", "after"]
    assert [line.split("  ")[0] for line in table[1:]] == [
        "equations",
        "kept for the gradient",
        "peak memory, estimated",
        "FLOPs",
    ]


@pytest.mark.parametrize("target", ["cli_programs:tripled", "cli_programs.py:tripled"])
def test_diff_of_a_program_nothing_is_done_to(run, target):
    assert run("diff", target, "--args", "f32[3]", "--exit-code") == (
        0,
        """\
  fn (x:f32[3]) {
    a:f32[3] = add x x
    a1:f32[3] = add a x
    return a1
  }

                        before  after
equations                    2      2
kept for the gradient      0 B    0 B
peak memory, estimated    36 B   36 B
FLOPs                        6      6
""",
        "",
    )


def test_exit_code_tells_whether_programs_differ(run):
    loss = ("diff", "cli_programs:loss", *BOUNDED, "--stat")
    assert run(*loss)[0] == 0
    assert run(*loss, "--exit-code")[0] == 1
    assert run(*loss, "--exit-code", "--passes", "simplify")[0] == 0


def test_two_targets_are_compared_as_they_are(run):
    both = ("cli_programs:loss", "cli_programs:optimized_loss")
    code, out, _ = run("diff", *both, *BOUNDED, "--exit-code")
    assert code == 1
    assert "- " in out
    same = ("cli_programs:Model.apply", "cli_programs:Model.apply", "--args", "f32[3]")
    assert run("diff", *same, "--exit-code", "--stat")[0] == 0
    other = ("cli_programs:Model.apply", "cli_programs:tripled", "--args", "f32[3]", "--stat")
    assert run("diff", *other)[1].splitlines()[0].split() == ["apply", "tripled"]


def test_selected_passes_replace_those_of_an_optimised_target(run):
    target = ("diff", "cli_programs:optimized_loss", *BOUNDED, "--stat", "--exit-code")
    assert run(*target)[0] == 1
    assert run(*target, "--passes", "simplify")[0] == 0
    assert run(*target, "--skip", f"{LOOPS},compile-small-loops")[0] == 0


def test_json_has_plain_numbers(run):
    command = ("diff", "cli_programs:tripled", "--args", "f32[3]", "--compile", "--format", "json")
    code, out, _ = run(*command)
    shown = json.loads(out)
    assert code == 0
    assert shown["changed"] is False
    assert shown["figures"]["equations"] == {"before": 2, "after": 2}
    assert shown["figures"]["flops"]["before"] == 6
    assert shown["figures"]["compile_seconds"]["before"] > 0
    assert shown["diff"].startswith("  fn (x:f32[3]) {\n")


def test_compile_adds_what_was_measured(run):
    out = run("diff", "cli_programs:draw", "--args", "key[]", "--stat", "--compile")[1]
    assert [line.split("  ")[0] for line in out.splitlines()[-2:]] == [
        "time to compile",
        "temporaries, compiled",
    ]


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ("f32[8,128]", "f32[8,128]"),
        ("f32[ 8, 128 ]", "f32[8,128]"),
        ("bf16[]", "bf16[]"),
        ("f16[0]", "f16[0]"),
        ("float32[2]", "f32[2]"),
        ("i8[2]", "i8[2]"),
        ("u32[2]", "u32[2]"),
        ("c64[2]", "c64[2]"),
        ("1.5", "f32[]"),
        ("-3", "i32[]"),
        ("2j", "c64[]"),
    ],
)
def test_arguments_are_types_or_python_numbers(run, spec, shown):
    code, out, err = run("diff", "cli_programs:tripled", "--args", spec)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == f"  fn (x:{shown}) {{"


def test_keys_bools_and_none_are_arguments_too(run):
    assert run("diff", "cli_programs:draw", "--args", "key[]", "--stat")[0] == 0
    assert run("diff", "builtins:id", "--args", "bool[2]")[0] == 2
    assert "fn ()" in run("diff", "json.py:f", "--args", "None")[1]
    assert "fn (x:bool[])" in run("diff", "json.py:f", "--args", "True")[1]


def test_arguments_from_a_function_may_have_keywords(run):
    command = ("diff", "cli_programs:smooth", "--args-from", "cli_programs:with_keywords")
    assert run(*command)[1].startswith("  fn (x:f32[3], scale:f32[]) {\n")


def test_args_may_be_given_one_by_one(run):
    one_by_one = ("--args", "f32[3]", "--args", "f32[3]")
    assert run("diff", "cli_programs:product", *one_by_one, "--stat")[0] == 0


def test_argnums(run):
    product = ("diff", "cli_programs:product", "--args", "f32[3]", "f32[3]", "--grad")
    assert "dot_general[contract=x] 1.0 y\n" in run(*product)[1]
    assert "dot_general[contract=x] 1.0 x\n" in run(*product, "--argnums", "1")[1]
    both = run(*product, "--argnums", "0,1")[1]
    assert "1.0 y\n" in both
    assert "1.0 x\n" in both
    for wrong in ("x", ""):
        assert run(*product, "--argnums", wrong) == (
            2,
            "",
            f"jaxpr-opt: error: --argnums {wrong!r}: write argument positions, as 0 or 0,2\n",
        )


# -- explain


def test_explain_says_what_was_done_and_where(run):
    command = ("explain", "cli_programs:loss", *BOUNDED, "--skip", "compile-small-loops")
    code, out, err = run(*command)
    assert (code, err) == (0, "")
    first, *rest = out.splitlines()
    assert first.startswith("loss: 1 pass changed the program, in ")
    assert rest[1].startswith("collapse-loops  ")
    assert rest[2] == "  2 times 2 steps in two loops become 4 in one"
    assert rest[3].endswith("examples/bounded_while.py:51 in run)")


def test_explain_of_a_gradient_above_optimize(run):
    out = run("explain", "cli_programs:optimized_loss", *BOUNDED, "--grad", "--format", "json")[1]
    shown = json.loads(out)
    assert shown["function"] == "grad(loss)"
    assert shown["changed"] is True
    assert "collapse-loops" in [each["pass"] for each in shown["passes"] if each["done"]]


def test_explain_of_a_program_nothing_is_done_to(run):
    code, out, _ = run("explain", "cli_programs:tripled", "--args", "f32[3]")
    assert code == 0
    assert out.startswith("tripled: no pass found anything to improve, in ")
    assert len(out.splitlines()) == 1


# -- passes


def test_passes_lists_every_pass(run):
    code, out, _ = run("passes")
    assert code == 0
    assert "collapse-loops  differentiable\n  Merge a loop of loops" in out
    assert "exit-loop-early  final\n" in out
    assert "simplify  differentiable, clean-up\n" in out


def test_passes_shows_the_documentation_of_one(run):
    code, out, _ = run("passes", "collapse_loops")
    assert code == 0
    assert out.startswith("collapse-loops\nRuns when traced and when lowered; ")
    assert "\nBefore:\n\n    scan[n] carry(c=c_0) {\n" in out
    assert "\n1. " in out
    one = json.loads(run("passes", "collapse-loops", "--format", "json")[1])
    listed = json.loads(run("passes", "--format", "json")[1])
    assert one in listed
    assert one["phase"] == "differentiable"


# -- what can go wrong: one line, exit code 2

ERRORS = {
    ("diff", "cli_programs:los"): "cli_programs has no attribute 'los'; did you mean 'loss'?",
    ("diff", "cli_programs.py:Model.aply"): (
        "cli_programs.py:Model has no attribute 'aply'; did you mean 'apply'?"
    ),
    ("diff", "no_such_module:f"): "there is no module 'no_such_module', here or installed",
    ("diff", "nothing.py:f"): "there is no file nothing.py",
    ("diff", "loss"): "'loss' is not a target: write module:function or file.py:function",
    ("diff", "cli_programs:"): (
        "'cli_programs:' is not a target: write module:function or file.py:function"
    ),
    ("diff", "cli_programs:LIMIT"): "cli_programs:LIMIT is not a function, it is of type int",
    ("diff", "cli_broken:f"): (
        "importing cli_broken failed: ModuleNotFoundError: No module named 'not_there_at_all'"
        " (cli_broken.py:2)"
    ),
    ("diff", "cli_unfinished.py:f"): (
        "importing cli_unfinished.py failed: SyntaxError: invalid syntax (cli_unfinished.py:1)"
    ),
    ("diff", "cli_raises.py:f"): (
        "importing cli_raises.py failed: SystemExit: 3 (cli_raises.py:2 in f)"
    ),
    ("diff", "..cli_programs:loss"): (
        "'..cli_programs' is neither a module, as a.b, nor a file, as a/b.py"
    ),
    ("diff", "cli_programs:tripled", "--args", "f32[3]", "i32[]"): (
        "cli_programs:tripled takes (x): too many positional arguments"
    ),
    ("diff", "cli_programs:leaves"): (
        "leaves raised while tracing: SystemExit: 3 (cli_programs.py:40 in leaves)"
    ),
    ("diff", "cli_programs:tripled", "--args-from", "cli_programs:leaves"): (
        "cli_programs:leaves raised SystemExit: 3 (cli_programs.py:40 in leaves)"
    ),
    ("diff", "cli_programs:tripled", "--args", "f32[]", "--argnums", "0"): (
        "--argnums needs --grad: it says what to differentiate by"
    ),
    ("diff", "cli_programs:tripled", "--args", "f32[]", "--grad", "--argnums", "0,0"): (
        "--argnums '0,0': write argument positions, as 0 or 0,2"
    ),
    ("diff", "cli_programs:tripled", "--args", "f32[]", "--grad", "--argnums", "3"): (
        "cli_programs:tripled: there is no argument 3 to differentiate by: 1 positional argument"
    ),
    ("diff", "cli_programs:tripled", "--args", "str[3]"): (
        "unknown dtype 'str' in 'str[3]': there are f16, bf16, f32, f64, i8 to i64, u8 to u64,"
        " c64, c128, bool and key"
    ),
    ("diff", "cli_programs:product", "--args", "f32[3]"): (
        "cli_programs:product takes (x, y): missing a required argument: 'y';"
        " give arguments with --args or --args-from"
    ),
    ("diff", "cli_programs:smooth"): (
        "cli_programs:smooth takes (x, *, scale=...): missing a required argument: 'x';"
        " give arguments with --args or --args-from"
    ),
    ("diff", "cli_programs:product", "--args", "f32[3,4]", "f32[3,4]"): (
        "product raised while tracing: TypeError: dot_general requires contracting dimensions to"
        " have the same shape, got (4,) and (3,). (cli_programs.py:34 in product)"
    ),
    ("explain", "cli_programs:boom", "--args", "f32[]"): (
        "boom raised while tracing: ValueError: no good (cli_programs.py:43 in boom)"
    ),
    ("diff", "cli_programs:tripled", "--args", "f32[3,x]"): (
        "cannot read the argument 'f32[3,x]': write a dtype and a shape, as f32[8,128] or i32[],"
        " or a Python number; for anything else name a function, with --args-from or in `args`"
    ),
    ("diff", "cli_programs:tripled", "--args", "f33[3]"): (
        "unknown dtype 'f33' in 'f33[3]': there are f16, bf16, f32, f64, i8 to i64, u8 to u64,"
        " c64, c128, bool and key"
    ),
    ("diff", "cli_programs:tripled", "--args", "f64[3]"): (
        "f64[3] needs 64-bit types, which are off: set JAX_ENABLE_X64=1"
    ),
    ("diff", "cli_programs:tripled", "--args-from", "cli_programs:wide"): (
        "a float64 argument of cli_programs:wide needs 64-bit types, which are off:"
        " set JAX_ENABLE_X64=1"
    ),
    ("diff", "cli_programs:tripled", "--args-from", "cli_programs:not_a_tuple"): (
        "cli_programs:not_a_tuple returned a list: expected a tuple of arguments"
    ),
    ("diff", "cli_programs:tripled", "--args-from", "cli_programs:boom"): (
        "cli_programs:boom raised TypeError: boom() missing 1 required positional argument: 'x'"
    ),
    ("diff", "cli_programs:tripled", "--args", "f32[]", "--skip", "colapse-loops"): (
        "--skip: there is no pass 'colapse-loops'; did you mean 'collapse-loops'?"
    ),
    ("diff", "cli_programs:tripled", "--args", "f32[]", "--passes", "colapse-loops"): (
        "--passes: there is no pass 'colapse-loops'; did you mean 'collapse-loops'?"
    ),
    ("diff", "cli_programs:tripled", "--args", "f32[]", "-U", "-1"): (
        "argument -U/--unified: expected a number of lines, as 3, got '-1'; see jaxpr-opt diff"
        " --help"
    ),
    ("passes", "colapse-loops"): "there is no pass 'colapse-loops'; did you mean 'collapse-loops'?",
    ("diff", "cli_programs:loss", "cli_programs:tripled", *BOUNDED, "--skip", "simplify"): (
        "--passes and --skip are for one target: two are compared as they are"
    ),
    ("diff",): "the following arguments are required: TARGET; see jaxpr-opt diff --help",
    ("diff", "a:b", "--args", "1", "--args-from", "c:d"): (
        "argument --args-from: not allowed with argument --args; see jaxpr-opt diff --help"
    ),
    ("passes", "--shiny"): "jaxpr-opt passes has no option --shiny; see jaxpr-opt passes --help",
}


@pytest.mark.parametrize("argv", ERRORS, ids=" ".join)
def test_errors_are_one_line(run, argv):
    assert run(*argv) == (2, "", f"jaxpr-opt: error: {ERRORS[argv]}\n")


def test_the_gradient_of_an_integer_is_an_error(run):
    for number in ("3", "i32[]"):
        code, _, err = run("diff", "cli_programs:tripled", "--args", number, "--grad")
        assert code == 2
        assert err == (
            "jaxpr-opt: error: cli_programs:tripled: argument 0 holds no floats to differentiate"
            " by\n"
        )


def test_traceback_is_there_for_those_who_ask(run):
    with pytest.raises(jaxpr_opt.targets.TargetError):
        run("diff", "cli_programs:boom", "--args", "f32[]", "--traceback")


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_line(run, monkeypatch):
    class Failing(jaxpr_opt.Pass):
        name = "failing"

        def find(self, op):
            raise KeyError("oops")

    failing = jaxpr_opt.optimize(lambda x: x * 2.0, passes=[Failing()])
    monkeypatch.setattr("cli_programs.failing", failing, raising=False)
    with jaxpr_opt.settings.override(strict=False):
        code, out, err = run("explain", "cli_programs:failing", "--args", "f32[]")
    assert code == 0
    assert "failed, and left out\n  pass failing failed: KeyError: 'oops'" in out
    assert err == (
        "jaxpr-opt: warning: pass failing failed: KeyError: 'oops';"
        " the program was optimised without it\n"
    )


# -- what it looks like


def test_everything_fits_80_columns(run):
    commands = [
        ("diff", "cli_programs:loss", *BOUNDED, "--grad"),
        ("diff", "cli_programs:draw", "--args", "key[]", "--stat", "--compile"),
        ("explain", "cli_programs:loss", *BOUNDED, "--grad"),
        ("passes",),
        *(("passes", name) for name in jaxpr_opt.engine.registry.available()),
    ]
    for command in commands:
        code, out, _ = run(*command)
        assert code == 0
        assert not [line for line in out.splitlines() if len(line) > 80 or line != line.rstrip()]
        assert "\x1b" not in out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (
            ["lint", "--formt", "json"],
            "jaxpr-opt lint has no option --formt; did you mean '--format'?",
        ),
        (["diff", "--zzz"], "the following arguments are required: TARGET; see jaxpr-opt diff"),
        (["passes", "simplify", "more"], "jaxpr-opt passes takes no 'more'; see jaxpr-opt passes"),
        (["dif", "x"], "argument COMMAND: there is no 'dif'; did you mean 'diff'?"),
        (
            ["passes", "--format", "jsn"],
            "argument --format: there is no 'jsn'; did you mean 'json'?",
        ),
    ],
)
def test_unknown_words_name_the_nearest(run, argv, says):
    code, out, err = run(*argv)
    assert (code, out) == (2, "")
    assert err.startswith(f"jaxpr-opt: error: {says}")
    assert err.count("\n") == 1


# -- another revision


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository whose program has changed since it was committed."""
    folder = tmp_path / "repo" / "models"
    folder.mkdir(parents=True)
    (folder / "rev_sizes.py").write_text("WIDTH = 3\n")
    program = "import jax, jax.numpy as jnp\nimport rev_sizes\n"
    program += "def loss(x):\n    return jnp.sin(x).sum()\n"
    program += "def given():\n    return (jax.ShapeDtypeStruct((rev_sizes.WIDTH,), 'float32'),)\n"
    (folder / "rev_model.py").write_text(program)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(folder)]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "First"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    (folder / "rev_model.py").write_text(program.replace("sin", "cos"))
    (folder / "rev_sizes.py").write_text("WIDTH = 5\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder
    for name in ("rev_model", "rev_sizes"):
        sys.modules.pop(name, None)


def test_a_program_at_another_revision(run, repository):
    loss = ("rev_model:loss", "--args-from", "rev_model.py:given")
    code, out, err = run("diff", *loss, "--rev", "main", "--exit-code")
    assert (code, err) == (1, "")
    assert "- fn (x:f32[3]) {" in out.replace("-  ", "- ")
    assert "f32[5]" in out and "sin x" in out and "cos x" in out
    assert out.partition("\n\n")[2].split()[:2] == ["main", "now"]
    assert Path.cwd() == repository
    import rev_sizes

    assert rev_sizes.WIDTH == 5
    assert not [m for m in sys.modules.values() if "/jaxpr-opt-" in str(getattr(m, "__file__", ""))]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--rev", "mian"], "--rev: fatal: not a valid object name: mian"),
        (["--rev", "main", "--passes", "simplify"], "--passes and --skip are for one target"),
        (["rev_model:loss", "--rev", "main"], "--rev compares one target with itself"),
    ],
)
def test_revisions_that_make_no_sense(run, repository, options, says):
    code, _, err = run("diff", "rev_model:loss", *options, "--args", "f32[3]")
    assert code == 2
    assert err.startswith(f"jaxpr-opt: error: {says}")


def test_a_target_that_was_not_there(run, repository):
    (repository / "rev_model.py").write_text("def new(x):\n    return x\n")
    _, _, err = run("diff", "rev_model:new", "--rev", "main", "--args", "f32[3]")
    assert err.startswith("jaxpr-opt: error: at main: rev_model has no attribute 'new'")


@pytest.mark.parametrize(
    "argv",
    [
        ["--stat", "cli_programs:tripled", "--args", "f32[3]"],
        ["--args", "f32[3]", "cli_programs:tripled", "--stat"],
        ["--stat", "--args", "f32[3]", "cli_programs.py:tripled"],
        ["--stat", "--args=f32[3]", "cli_programs.py:tripled"],
    ],
)
def test_arguments_and_targets_in_any_order(run, argv):
    code, out, err = run("diff", *argv)
    assert (code, err) == (0, "")
    assert out.split()[:2] == ["before", "after"]


def test_two_targets_behind_arguments(run):
    both = ("--args", "-1.5", "cli_programs:tripled", "cli_programs:tripled", "--stat")
    assert run("diff", *both)[0] == 0


def test_the_version(run, capsys):
    with pytest.raises(SystemExit) as done:
        run("--version")
    assert done.value.code == 0
    assert capsys.readouterr().out == f"jaxpr-opt {jaxpr_opt.__version__}\n"


def test_explain_folds_what_was_not_done(run):
    loss = ("explain", "cli_programs:loss", *BOUNDED, "--grad")
    short, full = run(*loss)[1], run(*loss, "-v")[1]
    assert "not done, because  -v shows each place" in short
    assert re.search(r"^  [a-z-]+, \d+ places?: ", short, re.MULTILINE)
    assert re.search(r"^[a-z-]+  not done, because$", full, re.MULTILINE)
    assert len(full.splitlines()) >= len(short.splitlines())


def test_progress_is_for_terminals_only(run, monkeypatch):
    lint = ("lint", "cli_programs:tripled", "--args", "f32[3]")
    assert run(*lint)[2] == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    _, out, err = run(*lint)
    assert "looking at cli_programs:tripled (1 of 1)" in err
    assert "looking at" not in out
    assert "tracing tripled" in run("explain", *lint[1:])[2]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_completion_knows_every_command_and_option(run, shell):
    code, out, _ = run("completion", shell)
    assert code == 0
    for word in ("lint", "explain", "statistics", "args-from", "update-baseline"):
        assert word in out


def test_completion_in_bash(run):
    script = run("completion", "bash")[1]
    ask = "COMP_WORDS=(jaxpr-opt {}); COMP_CWORD={}; _jaxpr_opt; echo ${{COMPREPLY[@]}}\n"
    asked = ask.format("re", 1) + ask.format("lint --st", 2) + ask.format("lint model", 2)
    done = subprocess.run(
        ["bash"], input=script + asked, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["residuals report", "--statistics", ""]


def test_a_terminal_gets_colours_and_lines_that_fit(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    out = run("diff", "cli_programs:loss", *BOUNDED, "--grad")[1]
    assert "\x1b[31m" in out
    assert max(len(re.sub("\x1b.*?m", "", line)) for line in out.splitlines()) <= 60


def test_as_a_program(folder):
    found = _python("-m", "jaxpr_opt", "diff", "cli_programs:boom", "--args", "f32[]", cwd=folder)
    assert found.returncode == 2
    assert found.stdout == ""
    assert found.stderr == (
        "jaxpr-opt: error: boom raised while tracing: ValueError: no good"
        " (cli_programs.py:43 in boom)\n"
    )


def test_where_there_is_nothing_to_write_to(run, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", None)  # as `>&-` leaves it
        code, _, err = run("explain", "cli_programs:tripled", "--args", "f32[3]")
    assert code == 2
    assert err == "jaxpr-opt: error: standard output is closed: results are written to it\n"
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", None)
        assert run("diff", "cli_programs:LIMIT")[:2] == (2, "")
        code, out, _ = run("explain", "cli_programs:tripled", "--args", "f32[3]")
    assert code == 0
    assert out.startswith("tripled: ")


def test_wide_types_where_they_are_on(folder):
    command = ("-m", "jaxpr_opt", "diff", "cli_programs:tripled", "--args", "f64[3]")
    found = _python(*command, cwd=folder, JAX_ENABLE_X64="1")
    assert found.returncode == 0
    assert found.stdout.startswith("  fn (x:f64[3]) {\n")


def _python(*argv, cwd=None, **env):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *argv],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_passes_are_listed_by_folder(run):
    out = run("passes")[1]
    assert out.startswith("When a pass runs\n  differentiable: when traced")
    assert "\npasses/laws: Equalities that hold everywhere" in out


def test_code_that_is_too_wide_goes_on_further_to_the_right(run):
    lines = run("passes", "collapse-loops")[1].splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line.startswith("    ") for line in lines if "yield carry" in line)
