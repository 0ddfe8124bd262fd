"""Every rewrite that is sound pays: what passes ask of costs is set so that they fire."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

SETTINGS: dict[str, Any] = {
    "jaxpr_opt.passes.exit_loop_early.MIN_STEP_BYTES": 0,
    "jaxpr_opt.analysis.cuts._work": lambda _: 0.0,
    "jaxpr_opt.passes.read_before_overwriting.MIN_BYTES": 0,
    "jaxpr_opt.passes.read_before_overwriting.MIN_BYTES_WHOLE": 0,
    "jaxpr_opt.passes.read_after_writing.MIN_BYTES": 0,
    "jaxpr_opt.passes.join_scalar_stacks.MIN_STACKS": 2,
    "jaxpr_opt.passes.accumulate_sparse_cotangents.MAX_ADDED": 1,
    "jaxpr_opt.subtotals.WIDE": 0,
    "jaxpr_opt.analysis.versions.WORTHWHILE": 0,
    "jaxpr_opt.analysis.shifts.LARGE": 0,
    "jaxpr_opt.passes.pack_scalars.WORTHWHILE": 1,
    "jaxpr_opt.passes.pack_scalars.WIDE": 0,
}
"""What is asked, and the answer by which everything pays."""


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Passes fire wherever they may."""
    places = [(*name.rpartition("."), value) for name, value in SETTINGS.items()]
    found = [(importlib.import_module(module), name, v) for module, _, name, v in places]
    kept = [(module, name, getattr(module, name)) for module, name, _ in found]
    try:
        for module, name, value in found:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in kept:
            setattr(module, name, value)
