"""How many steps of a loop are taken."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.steps.skips import Skip
from jaxpr_opt.builders.last_taken import last_step
from jaxpr_opt.builders.skipped_steps import is_taken
from jaxpr_opt.ir.graph import Value
from jaxpr_opt.ir.rewriter import Rewriter


def steps_taken(skip: Skip, rw: Rewriter) -> Value:
    """The number of rows among which are all steps that are taken, of a loop that runs forward."""
    return count_taken(skip, rw) if skip.kind == "carried" else last_step(skip, rw)


def count_taken(skip: Skip, rw: Rewriter) -> Value:
    """Give the scan a carry that counts the steps it takes."""
    scan = skip.scan
    carry = rw.carry(scan, rw.scalar(0, np.int32), "taken")

    def count(k: jax.Array, p: jax.Array) -> jax.Array:
        return lax.add(k, lax.convert_element_type(is_taken(skip, p), k.dtype))

    end = scan.body.terminator
    rw.set_last_next(scan, rw.insert(count, carry.param, skip.predicate, before=end))
    return carry.result
