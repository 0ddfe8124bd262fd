"""The tables of the residual planner: every line is carried out by a pass, and documented."""

from pathlib import Path

import pytest

from jaxpr_opt.analysis.residuals.suppliers import SUPPLIERS
from jaxpr_opt.engine import registry

DESIGN = (Path(__file__).parents[2] / "docs" / "design.md").read_text()


@pytest.mark.parametrize("supplier", SUPPLIERS, ids=lambda each: each.carried_out_by)
def test_a_supplier_is_carried_out_by_a_pass_and_documented(supplier):
    names = {each.name for each in registry.default_pipeline().passes}
    assert supplier.carried_out_by in names
    assert f"| {supplier.source} |" in DESIGN
