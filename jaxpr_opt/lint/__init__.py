"""`jaxpr-opt lint`: what to change in a program, found from its shapes alone."""

from jaxpr_opt.lint.finding import Finding as Finding
from jaxpr_opt.lint.options import Options as Options
from jaxpr_opt.lint.rule import Rule as Rule
from jaxpr_opt.lint.rule import register as register
from jaxpr_opt.lint.subject import Subject as Subject
from jaxpr_opt.lint.target import lint_target as lint_target
