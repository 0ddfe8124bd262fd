"""`jaxpr-opt lint` and `jaxpr-opt rule`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from jaxpr_opt.cli import documentation
from jaxpr_opt.errors import TargetError
from jaxpr_opt.lint import Finding, baseline, config, formats
from jaxpr_opt.lint.discover import Asked, found
from jaxpr_opt.lint.formats import text
from jaxpr_opt.lint.options import Spec, parse
from jaxpr_opt.lint.result import Result
from jaxpr_opt.lint.rule import (
    FAMILIES,
    SECTIONS,
    Rule,
    capitalised,
    named,
    passages,
    rules,
    summary,
)
from jaxpr_opt.lint.rule import documentation as sections
from jaxpr_opt.lint.run import Run
from jaxpr_opt.lint.target import Target
from jaxpr_opt.printing import plain, show
from jaxpr_opt.stderr import complain, working
from jaxpr_opt.targets import Arguments, resolve


def lint(options: argparse.Namespace, console: Console) -> int:
    """`jaxpr-opt lint`."""
    file = config.find(Path.cwd()) if options.config is None else Path(options.config)
    project = config.load(file)
    asked = _asked(options)
    select = None if options.select is None else _listed("--select", options.select)
    chosen = project.chosen(select, _listed("--ignore", options.ignore))
    known, also = _known(options, project), [_file(each) for each in options.write]
    earlier = None if known is None or options.update_baseline else baseline.read(known)
    with working("importing") as tell:
        run = Run(project, chosen, earlier, tell, stops=options.traceback)
        result = run.result(*found(options.targets, project, asked))
    if options.update_baseline:
        return _update(result, known)
    for write, path in also:
        save(path, f"{write(result)}\n")
    if len(result.errors) < len(result.targets) or options.format != "text":
        _write(result, options, console)
    for each in result.errors:
        complain("error", each.error)
    return 0 if options.exit_zero and result.exit_code == 1 else result.exit_code


def rule(options: argparse.Namespace, console: Console) -> int:
    """`jaxpr-opt rule`."""
    try:
        chosen = None if options.name is None else named(options.name)
    except ValueError as error:
        raise TargetError(str(error)) from None
    if options.format == "json":
        documented = (
            to_dict(chosen) if chosen is not None else [to_dict(r) for r in rules().values()]
        )
        print(json.dumps(documented, indent=2, ensure_ascii=False))
    else:
        show(contents() if chosen is None else page(chosen), console)
    return 0


def findings(name: str, function: Callable[..., Any], arguments: Arguments) -> tuple[Finding, ...]:
    """The findings of `jaxpr-opt lint` in one function, by the settings of the project."""
    project = config.load(config.find(Path.cwd()))
    target = Target(name=name, function=function, given=lambda: arguments)
    (checked,) = Run(project, project.chosen(None, ()), stops=True).result([target]).targets
    return checked.findings


# -- lint ----------------------------------------------------------------------------------------


def _asked(options: argparse.Namespace) -> Asked:
    """What the command line says about targets that say nothing themselves."""
    given = {
        name: getattr(options, name)
        for name in ("mode", "scale", "growth")
        if getattr(options, name) is not None
    }
    if options.argnums is not None:
        if options.mode != "gradient":
            raise TargetError("--argnums is for gradients: add --mode gradient")
        given["argnums"] = _numbers(options.argnums)
    try:
        settings = parse(given, Spec)
    except ValueError as error:
        raise TargetError(f"--{error}") from None
    if options.args_from is not None:
        return Asked(resolve(options.args_from), options.args_from, settings)
    return Asked(options.args, "--args" if options.args else "", settings)


def _numbers(listed: str) -> list[int]:
    try:
        return [int(number) for number in listed.split(",")]
    except ValueError:
        raise TargetError(f"--argnums {listed!r}: write argument positions, as 0 or 0,2") from None


def _listed(option: str, listed: str) -> tuple[str, ...]:
    """The rules an option names, all of which there are."""
    selectors = tuple(name.strip() for name in listed.split(",") if name.strip())
    config.codes_of(selectors, option)
    return selectors


def _known(options: argparse.Namespace, project: config.Config) -> Path | None:
    """The file of an earlier run."""
    if options.against is not None and options.update_baseline:
        raise TargetError("--against is another revision's: --update-baseline would overwrite it")
    given = options.against or options.baseline
    path = project.baseline if given is None else Path(given)
    if options.update_baseline and path is None:
        raise TargetError(
            "--update-baseline needs a file: add --baseline FILE, or name it in"
            " pyproject.toml as baseline"
        )
    return path


def _update(result: Result, path: Path | None) -> int:
    assert path is not None
    if result.errors:
        raise TargetError(f"{path} stays as it was: {result.errors[0].error}")
    save(path, baseline.written(result))
    print(f"{path}: {result.summary()}")
    return 0


def _file(written: str) -> tuple[Callable[[Result], str], Path]:
    """The format and the path that `--write` names."""
    name, equals, path = written.partition("=")
    writers = {"text": lambda result: plain(text.render(result)), **formats.WRITERS}
    if not (equals and path and name in writers):
        raise TargetError(
            f"--write {written!r}: expected FORMAT=FILE, a format of {', '.join(writers)}"
        )
    return writers[name], Path(path)


def _write(result: Result, options: argparse.Namespace, console: Console) -> None:
    if options.format == "text":
        shown = text.render(result, options.statistics)
        if options.output is None:
            show(shown, console)
        else:
            save(Path(options.output), f"{plain(shown)}\n")
    else:
        if options.statistics:
            raise TargetError("--statistics is for text: all other formats have every finding")
        document = formats.WRITERS[options.format](result)
        if options.output is None:
            print(document)
        else:
            save(Path(options.output), f"{document}\n")
    if options.output is not None:
        print(text.headline(result))


def save(path: Path, document: str) -> None:
    """Write a file that the user has asked for."""
    try:
        path.write_text(document, encoding="utf-8")
    except OSError as error:
        raise TargetError(f"cannot write {path}: {error.strerror}") from error


# -- rule ----------------------------------------------------------------------------------------


def to_dict(rule: Rule) -> dict[str, Any]:
    """The rule for machines."""
    documented = {title.lower(): text for title, text in sections(rule).items()}
    return {
        "code": rule.code,
        "rule": rule.name,
        "family": FAMILIES[rule.code[3]],
        "severity": rule.severity,
        "default": rule.default,
        **documented,
    }


def contents() -> RenderableType:
    """One entry a rule, by families."""
    shown: list[RenderableType] = []
    family = ""
    for rule in rules().values():
        if FAMILIES[rule.code[3]] != family:
            family = FAMILIES[rule.code[3]]
            shown += [Text(), Text(family, "bold underline")] if shown else [Text(family, "bold")]
        state = "" if rule.default else "  off by default"
        shown.append(Text(f"{rule.code} {rule.name}", "bold").append(state, "not bold dim"))
        shown.append(Padding(Text(summary(rule)), (0, 0, 0, 2)))
    return Group(*shown)


def page(rule: Rule) -> RenderableType:
    """Everything about one rule."""
    state = "on" if rule.default else "off"
    shown: list[RenderableType] = [
        Text(f"{rule.code} {rule.name}", "bold"),
        Text(f"{FAMILIES[rule.code[3]]}; {rule.severity}; {state} by default", "dim"),
    ]
    for title in SECTIONS:
        shown += [Text(), Text(title, "bold")]
        for number, (is_code, body) in enumerate(passages(title, sections(rule)[title])):
            shown += [Text()] if number else []
            shown += (
                [documentation.code(body)] if is_code else documentation.prose(capitalised(body))
            )
    return Group(*shown)
