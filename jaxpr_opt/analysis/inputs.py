"""What an op reads, remembered until the graph changes."""

from __future__ import annotations

from jaxpr_opt import ir
from jaxpr_opt.analysis.facts import remembered

inputs = remembered(ir.inputs)
