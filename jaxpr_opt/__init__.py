"""An optimising compiler for JAX programs: ``@jaxpr_opt.optimize``.

What a program that is only optimised does not need is imported when it is first asked for.
"""

import importlib as _importlib
import sys as _sys
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from jaxpr_opt import settings as settings
from jaxpr_opt.decorator import optimize as optimize
from jaxpr_opt.every_program import everywhere as everywhere
from jaxpr_opt.every_program import turn_on_if_asked as _turn_on_if_asked
from jaxpr_opt.optimized import Optimized as Optimized
from jaxpr_opt.version import __version__ as __version__

if _TYPE_CHECKING:
    from jaxpr_opt.engine.interface import Match as Match
    from jaxpr_opt.engine.interface import Pass as Pass
    from jaxpr_opt.engine.interface import PassError as PassError
    from jaxpr_opt.engine.pipeline import Pipeline as Pipeline
    from jaxpr_opt.ir.rewriter import Rewriter as Rewriter
    from jaxpr_opt.lint.run import lint as lint
    from jaxpr_opt.lint.target import lint_target as lint_target
    from jaxpr_opt.reports.diff import GraphDiff as GraphDiff
    from jaxpr_opt.reports.frontier import Frontier as Frontier
    from jaxpr_opt.reports.frontier import budget as budget
    from jaxpr_opt.reports.report import Report as Report
    from jaxpr_opt.reports.report import diff as diff
    from jaxpr_opt.reports.report import explain as explain
    from jaxpr_opt.reports.residuals import residuals as residuals
    from jaxpr_opt.reports.scaling import growth as growth

_LATER = {
    "Match": "engine.interface",
    "Pass": "engine.interface",
    "PassError": "engine.interface",
    "Pipeline": "engine.pipeline",
    "Rewriter": "ir.rewriter",
    "lint": "lint.run",
    "lint_target": "lint.target",
    "GraphDiff": "reports.diff",
    "Frontier": "reports.frontier",
    "budget": "reports.frontier",
    "Report": "reports.report",
    "diff": "reports.report",
    "explain": "reports.report",
    "residuals": "reports.residuals",
    "growth": "reports.scaling",
}
"""Where each name comes from that is imported when it is asked for."""


def __getattr__(name: str) -> _Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(_importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    except Exception as error:
        # A JAX we do not know: `optimize` warns, and leaves programs alone.
        if settings.current().strict:
            raise
        raise AttributeError(f"{__name__}.{name} does not work with this JAX: {error}") from error


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


class _Package(_ModuleType):
    @property
    def lint(self) -> _Any:  # the function, not the package of its name
        return __getattr__("lint")

    @lint.setter
    def lint(self, package: _Any) -> None:
        """What importing the package does."""


_sys.modules[__name__].__class__ = _Package

settings.check_environment()
_turn_on_if_asked()
