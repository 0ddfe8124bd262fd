"""The commands of ``jaxpr-opt``, and their options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from rich.console import Console

from jaxpr_opt.cli import completion, words
from jaxpr_opt.version import __version__

EXAMPLES = """\
examples:
  jaxpr-opt run train.py --steps 10
  jaxpr-opt init train.py --steps 1
  jaxpr-opt diff model.py:loss --grad --args-from model.py:arguments
  jaxpr-opt diff model:step --args 'f32[8,128]' 'i32[]' 0.5 --compile
  jaxpr-opt explain model:step --args 'f32[8,128]' 'i32[]' 0.5
  jaxpr-opt residuals model:loss --args-from model:arguments
  jaxpr-opt budget model:loss --grad --args-from model:arguments
  jaxpr-opt report model:step --args 'f32[8,128]' 'i32[]' 0.5 --html step.html
  jaxpr-opt passes collapse-loops
  jaxpr-opt lint model.py:loss --mode gradient --args-from model.py:arguments
"""


class UsageError(Exception):
    """The command line makes no sense; the message is the whole story."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        said = words.clearer(message)
        raise UsageError(said if said.endswith("?") else f"{said}; see {self.prog} --help")


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = _Parser(
        prog="jaxpr-opt",
        description="Analyse, lint and optimise JAX programs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"jaxpr-opt {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_run(commands)
    _add_init(commands)
    _add_diff(commands)
    _add_explain(commands)
    _add_residuals(commands)
    _add_budget(commands)
    _add_report(commands)
    _add_passes(commands)
    _add_lint(commands)
    _add_rule(commands)
    _add_completion(commands)
    return parser


def _add_run(commands: Any) -> None:
    run = _command(
        commands, "run", "run a script unchanged, then show what JAX compiled, and its cost", ()
    )
    _add_program(run)
    run.add_argument(
        "--optimize", action="store_true", help="run it optimised, and measure what that gains"
    )
    run.add_argument("--html", metavar="FILE", help="write a page for each program")
    run.add_argument("--save", metavar="DIR", help="write each program to a file in this folder")
    run.add_argument(
        "--only", metavar="GLOB", default="*", help="only functions of these names, as 'train*'"
    )
    run.add_argument("--all", action="store_true", help="also analyse programs of libraries")


def _add_init(commands: Any) -> None:
    init = _command(
        commands,
        "init",
        "run a script, and write a lint target with budgets for each function it compiles",
        (),
    )
    _add_program(init)


def _add_program(command: argparse.ArgumentParser) -> None:
    command.usage = "%(prog)s [options] SCRIPT|-m MODULE [argument ...]"
    command.add_argument(
        "program",
        metavar="SCRIPT",
        nargs=argparse.REMAINDER,
        help="the script and its own arguments; options of jaxpr-opt stand before it",
    )
    command.add_argument(
        "-m",
        dest="module",
        metavar="MODULE",
        nargs=argparse.REMAINDER,
        help="a module and its arguments, in place of a script",
    )
    command.add_argument(
        "--stop-after", metavar="N", type=_count, help="end the script after N compiled programs"
    )


def _count(written: str) -> int:
    if not written.isdecimal() or not int(written):
        raise argparse.ArgumentTypeError(f"expected a positive number, got {written!r}")
    return int(written)


def _lines(written: str) -> int:
    if not written.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number of lines, as 3, got {written!r}")
    return int(written)


def _add_diff(commands: Any) -> None:
    diff = _command(
        commands, "diff", "show a program before and after optimisation, or two programs"
    )
    _add_target(diff)
    diff.add_argument(
        "against", metavar="TARGET2", nargs="?", help="compare with this one, both unoptimised"
    )
    diff.add_argument(
        "-U",
        "--unified",
        metavar="N",
        type=_lines,
        help="show all changes, with N lines around each (default: what fits a screen)",
    )
    diff.add_argument("--full", action="store_true", help="show all lines, unchanged ones too")
    diff.add_argument(
        "--rev",
        metavar="REV",
        help="compare with the program at this git revision, as main or HEAD~1",
    )
    diff.add_argument("--stat", action="store_true", help="show only the summary table")
    diff.add_argument(
        "--compile", action="store_true", help="compile both, for time and temporary bytes"
    )
    diff.add_argument("--exit-code", action="store_true", help="exit with 1 if they differ")


def _add_explain(commands: Any) -> None:
    explain = _command(
        commands, "explain", "show what each pass did and where, and what it refused"
    )
    _add_target(explain)
    explain.add_argument("-v", "--verbose", action="store_true", help="list every refused place")


def _add_residuals(commands: Any) -> None:
    residuals = _command(
        commands, "residuals", "show what a gradient stores: its line, its size, what reads it"
    )
    _add_called(residuals)
    residuals.add_argument(
        "--grad",
        action="store_true",
        help="differentiate TARGET, though it is a gradient itself",
    )
    residuals.add_argument(
        "--argnums",
        metavar="I,J",
        help="arguments to differentiate by, as 0 or 0,2 (default: the first with floats)",
    )


def _add_budget(commands: Any) -> None:
    budget = _command(
        commands, "budget", "show what less memory costs: what optimize(memory=) chooses from"
    )
    _add_differentiated(budget)
    budget.set_defaults(passes=None, skip="")
    budget.add_argument("--html", metavar="FILE", help="also write a page with a plot")


def _add_report(commands: Any) -> None:
    report = _command(commands, "report", "write what explain shows as a page, with plots", ())
    _add_target(report)
    report.add_argument("--html", metavar="FILE", required=True, help="where to write the page")


def _add_passes(commands: Any) -> None:
    passes = _command(commands, "passes", "list the passes, or show the documentation of one")
    passes.add_argument("name", metavar="NAME", nargs="?", help="a pass")


def _add_lint(commands: Any) -> None:
    lint = _command(
        commands,
        "lint",
        "report avoidable costs of programs, from their shapes alone",
        formats=("text", "json", "github", "sarif", "junit", "markdown"),
    )
    lint.add_argument(
        "targets",
        metavar="TARGET",
        nargs="*",
        help="module:function, file.py:function, or a file of `jaxpr-opt run --save`; a module or"
        " file, for every optimised or marked function in it; a target of pyproject.toml (default:"
        " all of those)",
    )
    _add_arguments(lint)
    lint.add_argument(
        "--mode",
        metavar="MODE",
        help="as-is, gradient, train-step, or auto (default): gradient if the function returns"
        " a float, else as-is",
    )
    lint.add_argument(
        "--grad",
        dest="mode",
        action="store_const",
        const="gradient",
        help="same as --mode gradient",
    )
    lint.add_argument(
        "--argnums",
        metavar="I,J",
        help="with --grad: arguments to differentiate by, as 0 or 0,2 (default: 0)",
    )
    lint.add_argument("--scale", metavar="T=64,128", help="sizes to measure growth with")
    lint.add_argument("--growth", metavar="O(T)", help="the fastest growth allowed")
    lint.add_argument(
        "--select", metavar="A,B", help="run only these rules: codes, names, JXO1, ALL"
    )
    lint.add_argument("--ignore", metavar="A,B", default="", help="do not run these rules")
    lint.add_argument(
        "--output", metavar="FILE", help="write to this file, and print one summary line"
    )
    lint.add_argument(
        "--write",
        metavar="FORMAT=FILE",
        action="append",
        default=[],
        help="also write in this format to this file; may be repeated",
    )
    lint.add_argument(
        "--statistics",
        action="store_true",
        help="also print what targets cost, and how often each rule fired",
    )
    lint.add_argument(
        "--exit-zero", action="store_true", help="exit with 0 even if there are findings"
    )
    lint.add_argument("--config", metavar="FILE", help="use this, not the nearest pyproject.toml")
    known = lint.add_mutually_exclusive_group()
    known.add_argument("--baseline", metavar="FILE", help="do not report findings in this file")
    known.add_argument(
        "--against", metavar="FILE", help="report only what is not in this JSON of another revision"
    )
    lint.add_argument(
        "--update-baseline", action="store_true", help="write all findings to the baseline"
    )


def _add_rule(commands: Any) -> None:
    rule = _command(commands, "rule", "list the rules of lint, or show the documentation of one")
    rule.add_argument("name", metavar="RULE", nargs="?", help="a code or a name")


def _add_completion(commands: Any) -> None:
    command = _command(commands, "completion", "print a script for a shell's completion", ())
    command.add_argument(
        "shell", metavar="SHELL", choices=completion.SHELLS, help=", ".join(completion.SHELLS)
    )
    command.epilog = 'For bash: eval "$(jaxpr-opt completion bash)"'

    def run(options: argparse.Namespace, console: Console) -> int:
        del console
        print(completion.SHELLS[options.shell](commands.choices), end="")
        return 0

    command.set_defaults(run=run)


def _command(
    commands: Any, name: str, does: str, formats: Sequence[str] = ("text", "json")
) -> argparse.ArgumentParser:
    description = f"{does[0].upper()}{does[1:]}."
    command: argparse.ArgumentParser = commands.add_parser(name, help=does, description=description)
    if formats:
        command.add_argument("--format", choices=formats, default="text", help="default: text")
    command.add_argument("--traceback", action="store_true", help="show tracebacks of errors")
    command.set_defaults(run=_runner(name), command=command)
    return command


def _runner(name: str) -> Callable[[argparse.Namespace, Console], int]:
    """The function behind a command; JAX is imported when it runs, so that --help is quick."""

    def run(options: argparse.Namespace, console: Console) -> int:
        from jaxpr_opt.cli import commands

        code: int = getattr(commands, name)(options, console)
        return code

    return run


def _add_called(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "target",
        metavar="TARGET",
        help="module:function, file.py:function, or a file of `jaxpr-opt run --save`",
    )
    _add_arguments(command)


def _add_differentiated(command: argparse.ArgumentParser) -> None:
    _add_called(command)
    command.add_argument("--grad", action="store_true", help="take the gradient of the function")
    command.add_argument(
        "--argnums",
        metavar="I,J",
        help="with --grad: arguments to differentiate by, as 0 or 0,2 (default: 0)",
    )


def _add_target(command: argparse.ArgumentParser) -> None:
    _add_differentiated(command)
    command.add_argument("--passes", metavar="A,B", help="optimise with these passes only")
    command.add_argument("--skip", metavar="A,B", default="", help="optimise without these passes")


def _add_arguments(command: argparse.ArgumentParser) -> None:
    given = command.add_mutually_exclusive_group()
    given.add_argument(
        "--args",
        metavar="SPEC",
        nargs="*",
        action="extend",
        help="its arguments, types or values: 'f32[8,128]', 'i32[]', 'key[]', 1.5, 3, True, None",
    )
    given.add_argument(
        "--args-from",
        metavar="TARGET",
        help="a function that returns its arguments: args, or (args, kwargs)",
    )
