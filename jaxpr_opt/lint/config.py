"""The configuration of the linter in `pyproject.toml`::

    [tool.jaxpr-opt.lint]
    select = ["JXO1", "donated-but-unusable"]     # codes, their beginnings, names or ALL
    extend-select = ["JXO2"]
    ignore = ["JXO601"]
    per-path-ignores = {"tests/*" = ["ALL"]}
    min-bytes = "4 MiB"
    baseline = "lint-baseline.json"

    [tool.jaxpr-opt.lint.targets.step]
    function = "model.py:loss"                    # relative to this file
    args = "model.py:arguments"                   # or ["f32[8,128]", "i32[]"]
    mode = "gradient"
    max-residual-bytes = {warn = "48 MiB", fail = "64 MiB"}

    [tool.jaxpr-opt.lint.targets.update]
    run = "train.py --steps 1"                    # a script; `jaxpr-opt init` writes such tables
    program = "update"                            # a function that JAX compiles as it runs

Everything wrong with it is a `TargetError` that names the file and the table.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from jaxpr_opt.errors import TargetError, nearest
from jaxpr_opt.frames import Frame
from jaxpr_opt.lint.options import Options, Spec, parse, strings
from jaxpr_opt.lint.paths import relative
from jaxpr_opt.lint.program import of_saved
from jaxpr_opt.lint.rule import LISTED, Rule, rules
from jaxpr_opt.lint.target import Target, split_settings
from jaxpr_opt.saving.process import programs
from jaxpr_opt.targets import resolve

ALL = "ALL"


@dataclass(frozen=True)
class Named:
    """A target that has a name in the file; nothing is imported before it is wanted."""

    name: str
    function: str
    args: str | tuple[str, ...] | None
    spec: Spec
    settings: dict[str, Any]
    root: Path
    file: Path | None = None
    """Where it is named."""
    run: str = ""
    """The script that is run for it, with its arguments; then there is no `function`."""
    program: str = ""
    """What its program is called among those that the script compiles."""
    stop_after: int | None = None
    """After how many programs the script ends."""

    @property
    def place(self) -> Frame | None:
        """The line of its table."""
        if self.file is None or not self.file.is_file():
            return None
        header = re.compile(rf"\s*\[tool\.jaxpr-opt\.lint\.targets\.[\"']?{re.escape(self.name)}\b")
        lines = self.file.read_text(encoding="utf-8").splitlines()
        number = next((n for n, line in enumerate(lines, 1) if header.match(line)), 1)
        return str(self.file.resolve()), number, ""

    def target(self) -> Target:
        if self.run:
            return self._of_run()
        if str(self.root) not in sys.path:
            sys.path.insert(0, str(self.root))
        args = self.args
        return Target(
            name=self.name,
            function=resolve(self._below(self.function)),
            given=resolve(self._below(args)) if isinstance(args, str) else args,
            spec=self.spec,
            settings=self.settings,
            source=args if isinstance(args, str) else "",
        )

    def _of_run(self) -> Target:
        """The program that the script compiles."""
        found = programs(self.run, self.stop_after, self.root, is_heard=False)
        if self.program not in found:
            hint = nearest(self.program, found) if found else ""
            raise TargetError(f"{self.run} compiles no {self.program!r}{hint}")
        return of_saved(found[self.program], self.name, spec=self.spec, settings=self.settings)

    def _below(self, reference: str) -> str:
        """A reference to a file as one that is right from everywhere."""
        place, colon, path = reference.rpartition(":")
        return f"{self.root / place}{colon}{path}" if place.endswith(".py") else reference


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of a project; all defaults where there is none."""

    root: Path
    """What paths are relative to."""
    select: tuple[str, ...] | None = None
    """None: the rules that are on by default."""
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    per_path_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    options: Options = field(default_factory=Options)
    baseline: Path | None = None
    targets: Mapping[str, Named] = field(default_factory=dict)

    def chosen(self, select: tuple[str, ...] | None, ignore: tuple[str, ...]) -> tuple[Rule, ...]:
        """The rules that run; a selection on the command line replaces that of the file."""
        if select is None:
            select, ignore = self.select, (*self.ignore, *ignore)
        wanted = {rule.code for rule in rules().values() if rule.default}
        if select is not None:
            wanted = _selected(select)
        if select is self.select:
            wanted |= _selected(self.extend_select)
        wanted -= _selected(ignore)
        return tuple(rule for rule in rules().values() if rule.code in wanted)

    def ignored_at(self, frame: Frame | None) -> set[str]:
        """The codes of the rules that are not to report anything in this file."""
        if frame is None:
            return set()
        path = relative(frame[0], self.root)
        listed = (s for glob, s in self.per_path_ignores.items() if fnmatch(path, glob))
        return _selected([selector for selectors in listed for selector in selectors])


@functools.cache
def _of_selector(selector: str) -> frozenset[str]:
    """The codes a code, the beginning of one, a name, or ALL stands for.

    Raises:
      ValueError: it stands for none.
    """
    known = rules()
    name = selector.replace("_", "-").lower()
    found = frozenset(
        code
        for code, rule in known.items()
        if selector == ALL or name == rule.name or code.startswith(selector.upper())
    )
    if not found or len(selector) < 3:
        names = [*known, *(rule.name for rule in known.values()), ALL]
        raise ValueError(f"there is no rule {selector!r}{nearest(selector, names, LISTED)}")
    return found


def _selected(selectors: Iterable[str]) -> set[str]:
    return set[str]().union(*map(_of_selector, selectors))


def codes_of(selectors: Iterable[str], what: str) -> set[str]:
    """The codes of the rules that selectors stand for; `what` says where they were written."""
    try:
        return _selected(selectors)
    except ValueError as error:
        raise TargetError(f"{what}: {error}") from None


# -- the file ------------------------------------------------------------------------------------


def find(start: Path) -> Path | None:
    """The nearest `pyproject.toml`, here or above."""
    folders = (start, *start.parents)
    return next((f / "pyproject.toml" for f in folders if (f / "pyproject.toml").is_file()), None)


def load(file: Path | None) -> Config:
    """The settings in a file; the defaults if there is none."""
    if file is None:
        return Config(root=Path.cwd())
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError(f"cannot read {file}: {getattr(error, 'strerror', error)}") from error
    return read(text, file)


def read(text: str, file: Path) -> Config:
    """The settings in the text of a file; `file` is what paths are relative to."""
    return _config(_lint_table(text, file), file)


def _lint_table(text: str, file: Path) -> dict[str, Any]:
    """The table about linting."""
    try:
        found: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TargetError(f"{file} is not TOML: {error}") from error
    tools = _inner(found, "tool", file)
    ours = _inner(tools, "jaxpr-opt", file)
    misnamed = ["tool.jaxpr_opt"] if "jaxpr_opt" in tools else []
    misnamed += [f"tool.jaxpr-opt.{key}" for key in ours if key != "lint"]
    if misnamed:
        raise TargetError(f"{file.name}: [{misnamed[0]}] is unknown: write [tool.jaxpr-opt.lint]")
    return dict(_inner(ours, "lint", file))


def _inner(table: Mapping[str, Any], name: str, file: Path) -> Mapping[str, Any]:
    """A table in another; an empty one where there is none."""
    inner = table.get(name, {})
    if not isinstance(inner, Mapping):
        raise TargetError(f"{file.name}: {name} is {inner!r}: write [tool.jaxpr-opt.lint]")
    return inner


LISTS = ("select", "extend_select", "ignore")
OWN = (*LISTS, "per_path_ignores", "baseline", "targets")


@contextlib.contextmanager
def _table(file: Path, name: str) -> Iterator[None]:
    """Errors inside name the file and the table."""
    try:
        yield
    except ValueError as error:
        raise TargetError(f"{file.name}: [tool.jaxpr-opt.lint{name}]: {error}") from None


def _config(settings: dict[str, Any], file: Path) -> Config:
    root = file.parent.resolve()
    with _table(file, ""):
        given = parse(settings, Options, also=OWN)
        own = {name: given.pop(name) for name in OWN if name in given}
        for name in set(LISTS) & own.keys():
            own[name] = strings(name.replace("_", "-"), own[name])
            _selected(own[name])
        own["per_path_ignores"] = _per_path(own.get("per_path_ignores", {}))
        baseline, targets = own.pop("baseline", None), own.pop("targets", {})
        if not isinstance(baseline, str | None):
            raise ValueError(f"baseline is {baseline!r}: expected the name of a file")
        if not isinstance(targets, Mapping) or not all(
            isinstance(each, Mapping) for each in targets.values()
        ):
            raise ValueError("targets must be tables: write [tool.jaxpr-opt.lint.targets.NAME]")
    own["targets"] = {name: _target(name, dict(each), file) for name, each in targets.items()}
    own["baseline"] = None if baseline is None else root / baseline
    return Config(root=root, options=Options(**given), **own)


def _per_path(given: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(given, Mapping):
        raise ValueError(f"per-path-ignores is {given!r}: expected a table of lists")
    ignores = {glob: strings(f"per-path-ignores.{glob!r}", each) for glob, each in given.items()}
    for selectors in ignores.values():
        _selected(selectors)
    return ignores


def _target(name: str, settings: dict[str, Any], file: Path) -> Named:
    with _table(file, f".targets.{name}"):
        run = {key: settings.pop(key, None) for key in RUN}
        own = {key: settings.pop(key, None) for key in ("function", "args")}
        function, args = own["function"], own["args"]
        spec, options = split_settings(settings, also=(*own, *RUN))
        if any(each is not None for each in run.values()):
            unfit = [key for key in (*own, *_OF_FUNCTIONS) if own.get(key) or key in settings]
            _check_run(run, unfit)
            function = ""
        if not isinstance(function, str):
            got = "is missing" if function is None else f"is {function!r}"
            raise ValueError(f"function {got}: expected 'module:function' or 'file.py:function'")
        if not isinstance(args, str | None):
            args = strings("args", args)
        _selected(spec.ignore)
    root, stop_after = file.parent.resolve(), run["stop-after"]
    texts = run["run"] or "", run["program"] or ""
    return Named(name, function, args, spec, options, root, file, *texts, stop_after)


RUN = ("run", "program", "stop-after")
_OF_FUNCTIONS = ("mode", "argnums", "scale", "growth")
"""Settings of targets that are functions, and not programs."""


def _check_run(run: Mapping[str, Any], unfit: list[str]) -> None:
    """Whether this names a program of a script."""
    for key in ("run", "program"):
        if not isinstance(run[key], str) or not run[key]:
            got = "is missing" if run[key] is None else f"is {run[key]!r}"
            raise ValueError(f"{key} {got}: expected run = 'train.py ...' and program = 'name'")
    count = run["stop-after"]
    if count is not None and (type(count) is not int or count < 1):
        raise ValueError(f"stop-after is {count!r}: expected a number of programs")
    if unfit:
        raise ValueError(f"{unfit[0]} is for a function, and this is a program of a run")
