"""Privatize a reduction: sum the windows of a step in an array of their own before adding them to
the accumulator, because ``acc + (u + v)`` is not ``(acc + u) + v``.

Either in *slots*, where an inner loop adds one window in each of its n steps: there are n slots,
each as large as a window, and additions to the same window share a slot. A table with one number
for each window of the array gives its slot; a loop over the steps first marks each window with the
number of the last step that adds to it. The marks need no clearing, because only marks of this loop
are read::

    c, m = scan[k] carry(c=b, m=marks) xs(us=us, is=is) {
      m1 = scan[n] carry(m=m) xs(i=is, j=iota) { yield carry(m[i] = j) }
      s = scan[n] carry(s=zeros) xs(u=us, i=is) { ..s[m1[i]] += u.. }
      c1 = scan[n] carry(c=c) xs(s=s, i=is) { yield carry(c[i] += s) }
      yield carry(c1, m1)
    }

Or in an *array* like the accumulator, which the outer loop carries, and which is zero between its
steps. Its windows are then moved one by one: added to the accumulator, and cleared, so that a
window that recurs adds zero. This handles windows of any form, several loops, and nests of loops::

    c, s = scan[k] carry(c=b, s=zeros) xs(us=us, is=is) {
      t = scan[n] carry(t=s) xs(u=us, i=is) { ..t[i] += u..; yield carry(t) }
      c1, t1 = scan[n] carry(c=c, t=t) xs(i=is) { ..c[i] += t[i]; t[i] = 0..; yield carry(c, t) }
      yield carry(c1, t1)
    }
"""

from __future__ import annotations

from jaxpr_opt.analysis.sparse.scatter_chains import Chain
from jaxpr_opt.builders.sparse.sums_in_an_array import through_array
from jaxpr_opt.builders.sparse.sums_in_slots import slots, through_slots
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def add_privately(chain: Chain, total: Value, before: Op, rw: Rewriter) -> Value:
    """Add the pieces of a chain that starts at zero to `total`, by way of slots if it can."""
    found = slots(chain)
    if found is not None:
        return through_slots(found, total, before, rw)
    return through_array(chain, total, before, rw)


def is_less_elsewhere(chain: Chain, size: int, touched: int) -> bool:
    """Whether summing so many windows in another place is no slower than adding dense arrays: a
    step through slots is short.
    """
    prices = cost_model()
    if slots(chain) is not None:
        seconds = prices.loop_seconds(touched, 0)
    else:
        seconds = prices.added_apart(touched, size)
    return prices.is_sparse(chain.nbytes, size) and seconds <= prices.moved(size)
