"""Sums of an array and of windows: how they are added, and which may be the same."""

from __future__ import annotations

from typing import NamedTuple

from jaxpr_opt.analysis.masks.parts import before_writes, summands
from jaxpr_opt.analysis.sparse.disjoint_pieces import is_disjoint_between_steps, is_one_by_one
from jaxpr_opt.analysis.sparse.scatter_chains import (
    SCATTERS,
    Chain,
    Piece,
    Pieces,
    added,
    is_read_nowhere,
)
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.windows.access import Access
from jaxpr_opt.analysis.windows.coinciding import are_comparable
from jaxpr_opt.bridge.parameters import numbers_of
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.nesting import dominates
from jaxpr_opt.ir.traits import SUMS


def added_in_a_row(op: Op) -> list[int]:
    """The bytes of each piece that `op` adds, and of those that the sums before and after it add,
    except those that a loop adds up in an array of its own.
    """
    sums, pending = {op}, [op]
    while pending:
        each = pending.pop()
        near = (*each.result.users, *(v.op for v in each.operands if v.op is not None))
        new = {o for o in near if o.name in SUMS and o.region is op.region} - sums
        pending.extend(new)
        sums |= new
    terms = (added(v) for each in sums for v in each.operands if v.op not in sums)
    links = (link for term in terms if term.starts_at_zero for link in term.links)
    return [link.nbytes for link in links if isinstance(link, Piece)]


def is_read_beside(dense: Value, op: Op, chain: Chain) -> bool:
    """Whether more than a sum reads windows in zeros, but for other sums of the step if each adds
    the windows where they belong.
    """
    others = {user for user in dense.users if user is not op}
    sums = {user for user in others if user.name in SUMS and user.region is op.region}
    # Condition 1 of accumulate-sparse-cotangents.
    return bool(others - sums) or (bool(sums) and not is_one_by_one(chain, dense.dtype))


def is_scattered_in_rows(array: Value) -> bool:
    """Whether small windows were scattered last, in each row of a batch: XLA fuses no sum of these,
    nor joins them.
    """
    op = array.op
    if op is None or op.name not in SCATTERS or not numbers_of(op).operand_batching_dims:
        return False
    return cost_model().is_sparse(op.operands[2].nbytes, array.nbytes)


def loop_with_own_windows(chain: Chain, array: Value) -> Pieces | None:
    """The loop that adds all pieces of a chain, each step to a window of its own, if it may add
    them to `array` itself; windows that are better stacked first are left to that.
    """
    (link, *others) = chain.links
    # Condition 2 of accumulate-sparse-cotangents.
    if others or not isinstance(link, Pieces) or len(link.inner.links) > 1:
        return None
    (piece,) = link.inner.links
    # Condition 1 of accumulate-sparse-cotangents.
    if not is_read_nowhere(link):
        return None
    if cost_model().is_better_stacked(piece.nbytes):
        return None
    # Condition 2 of accumulate-sparse-cotangents.
    return link if is_disjoint_between_steps(piece, link.op) and dominates(array, link.op) else None


class ComparedWrites(NamedTuple):
    """A sum of an array and of zeros with windows written, of which two may coincide."""

    terms: dict[Value, Value | None]
    """What is added."""
    writes: list[Access]
    sums: tuple[Op, ...]
    """The additions."""


def compared_writes(op: Op, array: Value) -> ComparedWrites | None:
    """The windows that a sum adds to `array`, if all are writes into zeros, and the program can
    tell which of them coincide.
    """
    sums, terms = summands(op, array)
    parts = [before_writes(term, op) for term in terms if term is not array]
    writes = [write for _, each in parts for write in each]
    # Condition 1 of accumulate-sparse-cotangents.
    plain = len(parts) == len(terms) - 1 and all(uniform(v) == 0 for v, _ in parts)
    # Condition 2 of accumulate-sparse-cotangents.
    if not plain or not all(are_comparable(each, writes[0]) for each in writes):
        return None
    return ComparedWrites({term: term for term in terms}, writes, sums)
