"""Windows that are added to one array, one after the other."""

from __future__ import annotations

from jaxpr_opt.analysis.windows.scatter_chains import Piece, added
from jaxpr_opt.ir.graph import Op
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
