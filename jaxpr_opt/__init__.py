"""An optimising compiler for JAX programs: ``@jaxpr_opt.optimize``."""

from jaxpr_opt import settings as settings
from jaxpr_opt.decorator import optimize as optimize
from jaxpr_opt.every_program import everywhere as everywhere
from jaxpr_opt.every_program import turn_on_if_asked as _turn_on_if_asked
from jaxpr_opt.optimized import Optimized as Optimized
from jaxpr_opt.version import __version__ as __version__

try:
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
except Exception:
    # A JAX we do not know: `optimize` warns, and leaves programs alone.
    if settings.current().strict:
        raise

settings.check_environment()
_turn_on_if_asked()
