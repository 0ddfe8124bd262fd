"""The pytest plugin: the targets of `[tool.jaxpr-opt.lint.targets]` in pyproject.toml as tests.

::

    pytest --jaxpr-opt-lint                        # all tests, and every target
    pytest --jaxpr-opt-lint pyproject.toml::step   # one target
    pytest -m "not jaxpr_opt_lint"                 # none, where `jaxpr_opt_lint = true` is set

With ``jaxpr_opt_lint = true`` among pytest's options in pyproject.toml, targets are linted whenever
pytest is not told which tests to run.  A target fails as `jaxpr-opt lint` would: by a finding that
is not a note.

``JAXPR_OPT_EVERYWHERE=1 pytest`` runs all tests with what they compile optimised
(`jaxpr_opt.everywhere`).

pytest imports its plugins wherever they are installed, so this is a module of its own: importing
the package would import JAX before any conftest.py has had its say.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from jaxpr_opt.lint.config import Config
    from jaxpr_opt.lint.result import Result

OPTION = "--jaxpr-opt-lint"
SETTING = MARK = "jaxpr_opt_lint"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option, and the setting for those who always want it."""
    does = "lint the targets of [tool.jaxpr-opt.lint.targets] in pyproject.toml, each as a test"
    parser.getgroup("jaxpr-opt").addoption(OPTION, action="store_true", help=does)
    parser.addini(SETTING, f"{does}, unless tests are named", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Have pyproject.toml collected like a file of tests."""
    if os.environ.get("JAXPR_OPT_EVERYWHERE"):
        importlib.import_module("jaxpr_opt")  # it reads the variable
    config.addinivalue_line("markers", f"{MARK}: a target of pyproject.toml is linted")
    if not _is_wanted(config):
        return
    path = str(_project(config))
    if not any(arg.split("::")[0] == path for arg in map(_absolute, config.args)):
        config.args.append(path)


def _is_wanted(config: pytest.Config) -> bool:
    if config.getoption(OPTION):
        if not _project(config).is_file():
            raise pytest.UsageError(f"{OPTION}: there is no pyproject.toml in {config.rootpath}")
        return True
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    return bool(config.getini(SETTING)) and not named and _project(config).is_file()


def _project(config: pytest.Config) -> Path:
    return config.rootpath / "pyproject.toml"


def _absolute(arg: str) -> str:
    return str(Path(arg).absolute())


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> LintFile | None:
    """Targets, where they are wanted."""
    if file_path != _project(parent.config) or not _is_wanted(parent.config):
        return None
    return LintFile.from_parent(parent, path=file_path)


class LintFile(pytest.File):
    """The pyproject.toml of a project."""

    def collect(self) -> Iterator[LintTarget]:
        """An item for each target; no function is imported yet."""
        from jaxpr_opt.errors import TargetError
        from jaxpr_opt.lint import config

        try:
            project = config.load(self.path)
        except TargetError as error:
            raise self.CollectError(str(error)) from error
        if not project.targets:
            raise self.CollectError("there is no [tool.jaxpr-opt.lint.targets.NAME]")
        for name in project.targets:
            yield LintTarget.from_parent(self, name=name, project=project)


class LintTarget(pytest.Item):
    """One target."""

    def __init__(self, *, project: Config, **given: Any) -> None:
        super().__init__(**given)
        self.project = project
        self.add_marker(MARK)

    def runtest(self) -> None:
        """Lint it as `jaxpr-opt lint` does with a name."""
        from jaxpr_opt.lint import baseline
        from jaxpr_opt.lint.run import Run

        rules = self.project.chosen(None, ())
        known = None if self.project.baseline is None else baseline.read(self.project.baseline)
        target = self.project.targets[self.name].target()
        result = Run(self.project, rules, known, stops=True).result([target])
        if result.exit_code:
            raise LintError(result)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """What was found, without a traceback; what is wrong with the target, in one line."""
        from jaxpr_opt.errors import TargetError
        from jaxpr_opt.lint.formats import text
        from jaxpr_opt.printing import plain

        if isinstance(excinfo.value, LintError):  # pytest's summary shows the first line
            return f"{excinfo.value}\n\n{plain(text.render(excinfo.value.result))}"
        if isinstance(excinfo.value, TargetError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where it is defined."""
        return self.path, None, f"jaxpr-opt lint: {self.name}"


class LintError(Exception):
    """There are findings."""

    def __init__(self, result: Result) -> None:
        worst, *_ = result.findings
        super().__init__(f"{worst.code} {worst.rule}: {worst.says}")
        self.result = result
