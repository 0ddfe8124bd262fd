"""Store the smaller operands of residuals that are cheap to recompute, and recompute them where
they are read.

Before::

    h, r, k = scan[8] carry(c=z) xs(p=ps) {
      m = broadcast_in_dim[shape=(5, 4)] p
      w1 = select_n m w0 w
      t = tanh (dot_general c w1)
      s = sub 1.0 t
      yield carry(t) ys(w1, t, s)
    }
    g = scan[8, reverse] carry(c=ct) xs(a=r, b=k, d=q) { f a b d }

After::

    h, k = scan[8] carry(c=z) xs(p=ps) {
      m = broadcast_in_dim[shape=(5, 4)] p
      w1 = select_n m w0 w
      t = tanh (dot_general c w1)
      yield carry(t) ys(t)
    }
    g = scan[8, reverse] carry(c=ct) xs(p=ps, b=k) {
      m = broadcast_in_dim[shape=(5, 4)] p
      a = select_n m w0 w
      d = sub 1.0 b
      f a b d
    }

A minimum cut decides, for all residuals of a loop at once, which values of a step are stored.

Sound when

1. the stacks are read only row by row, in loops or nests of loops of as many steps; enclosing loops
   may stack them again;
2. pure first-order ops make their values, in the step or in the one branch that specifies them.
   These ops are repeated in the loops that read the stacks, from values defined outside all these
   loops, rows of their streams, and values that are stacked, now or already, by the loop around,
   too;
3. no op that jumps (a comparison, `floor`, a conversion to integers) is repeated together with the
   arithmetic that rounds what it reads. XLA may round otherwise in the other loop: ``x == max(x)``
   would be false everywhere (`jaxpr_opt.analysis.values.rounding`).

Where XLA may divide arrays over devices, all residuals stay: it would gather what two loops read.

Cost: two tables give the prices, one of other sources of a value (`suppliers`), one of kinds of ops
(`repeated_ops`):

- Data movement and basic arithmetic cost what reading their operands does. They are repeated if the
  new stacks are smaller than the old ones by a factor, and what that saves is a good part of what
  the readers read. The second need not hold if the loop skips steps, or a row tells a reader which
  of its steps do nothing: these recompute nothing.
- What is read shifted, too, is computed for each place, one by one, as XLA fuses it: of nested
  differences and splines one level is stored (else 1.3 to 1.8 times as long).
- Rows of few numbers (2 to 15) that are combined with one number a row (``o + t[:, None] * d``), or
  with other rows, are computed number by number: marched rays else took 1.7 times as long.
- What is reversed, transposed or read with strides costs a look-up for each number of what it is
  combined with, on JAX 0.10: gradients of ``c * x[::-1]`` in a batch else took 1.6 times as long.
- Arrays that are put together (an index of a step and an outer array) are computed one by one.
- A row of a table is read again if the readers have the table: an argument of the program, an array
  no larger than all rows together, or a buffer that the loop around writes to, and gets back by
  `undo-carried-writes`. That costs half of storing the row; a single number costs a cache line, and
  each number of rows that a batch reads, each of its own table, a look-up (else 1.4 to 1.6 times as
  long under `vmap`). A
  table that nothing else needs any more would stay in memory: its rows cost what storing them does.
- While all stacks of a loop stay in the cache, loading a value is faster than a transcendental
  function or a product. Beyond it (32 MB on a CPU, of stacks in new pages) a row costs six times as
  much: a softmax, a gelu, a product with a short contraction (attention scores) are recomputed, but
  not the product of a layer.
- What is broadcast after it is recomputed is computed for each element, inside the reader: a mask
  of rows and columns is stored before it is repeated for each channel (0.6 times).
- A carry that is the result of a transcendental function is stored rather than a value of the same
  size derived from it: XLA recomputes what it stores, and the function would run twice (0.77 of the
  time). Not so of bfloat16, of which XLA:CPU computes no function twice (1.13 times, JAX 0.12).
- In the cache a product is as much work as the rest of a step. It is repeated for attention over a
  cache that the loop writes to only: `undo-carried-writes` restores each version of the cache for
  the readers, and a row of the product is as long as the cache, about the number of steps. What is
  made of such rows in linear time (a softmax) is recomputed with them; a sum over them is stored.
  Shapes do not tell whether another array is as long as the loop.
- Where a byte of memory has a price (`optimize(memory=...)`), stacks cost that, too, and all that
  may be repeated is, loops included, if that costs less. Without a budget a byte of large stacks
  has a small price on a CPU, if steps take hardly longer (`jaxpr_opt.memory.thrift`).

Source: a vmapped cond's masks, https://github.com/jax-ml/jax/issues/8239; Dao et al.,
"FlashAttention" (arXiv:2205.14135), which stores the sums of rows and multiplies again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.residuals.cuts import Cut, available, residuals
from jaxpr_opt.analysis.residuals.residual_prices import cheapest_cut, residual_prices
from jaxpr_opt.analysis.residuals.stack_consumers import Route, Rows, routes
from jaxpr_opt.analysis.residuals.suppliers import stored_bytes
from jaxpr_opt.analysis.residuals.unread_rows import tells_ends
from jaxpr_opt.analysis.residuals.versions import is_kept_in_rows
from jaxpr_opt.analysis.steps.skips import find_skip
from jaxpr_opt.builders.residuals.recomputed_residuals import make_cut
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import After, Match, Pass
from jaxpr_opt.ir.graph import Op, Scan, Value, While
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Recomputation(Match):
    """Residuals that are made by what may be repeated, and the cheapest cut, if not at them."""

    op: Scan
    cut: Cut | None
    computed: Set[Value]
    """Carries that are stored at no price."""


@dataclass(frozen=True)
class NarrowResiduals(Pass[Recomputation]):
    """Store less and recompute the cheap rest: masks before they are spread, t instead of 1 - t."""

    name: ClassVar[str] = "narrow-residuals"
    after: ClassVar[tuple[After, ...]] = (
        After("stack-read-windows", "an array of which only a window is read need not be stored"),
    )
    whole_arrays: ClassVar[bool] = True
    thrifty: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[Recomputation]:
        found = residuals(op, nests=True)
        prices = residual_prices(op) if found else None
        made = [v for _, v in found if prices and v.op and prices.repeat(v.op) is not None]
        if prices is None or not made:
            return
        narrow = cheapest_cut(op, found, prices)
        made = made if narrow is None else [value for _, value in narrow.residuals]
        verb = "is" if len(made) == 1 else "are"
        sources = _labels(narrow.stored) if narrow and narrow.stored else "less"
        largest = max(made, key=lambda value: value.nbytes)
        says = f"{_labels(made)} {verb} computed again from {sources}"
        yield Recomputation(op, says, narrow, prices.computed, at=largest.op, about=largest)

    def refuse(self, match: Recomputation) -> str | None:
        if match.cut is None:
            return "storing their operands costs no less"
        if not all(_is_read_once(match.op, route) for route in _ways(match.cut)):
            return "a loop around their reader would recompute them in every step"
        priced = find_skip(match.op) is not None or cost_model().has_price
        tells = any(tells_ends(stack) for stack, _ in match.cut.residuals)
        if not (priced or tells or _is_good_part(match.op, match.cut, match.computed)):
            return "they are a small part of what the loop stacks"
        return None

    def rewrite(self, match: Recomputation, rw: Rewriter) -> None:
        assert match.cut is not None
        make_cut(match.op, match.cut, rw)


def _ways(cut: Cut) -> Iterator[Route]:
    for stack, _ in cut.residuals:
        yield from (route for route, _ in routes(stack.result, nests=True) or ())


def _is_read_once(scan: Scan, route: Route) -> bool:
    """Whether the loops around one that reads rows are on the way to them, or around `scan` too."""
    on_way = [hop.scan for hop in route if isinstance(hop, Rows)]
    loop = on_way[-1].parent
    while loop is not None and not any(region.contains(scan.region) for region in loop.regions):
        if isinstance(loop, Scan | While) and loop not in on_way:
            return False
        loop = loop.parent
    return True


def _is_good_part(scan: Scan, cut: Cut, computed: Set[Value]) -> bool:
    """Whether what is no longer stacked is much of what any loop that reads it reads of stacks."""
    ends = (route[-1] for route in _ways(cut))
    readers = {end.scan for end in ends if isinstance(end, Rows)}
    read = [sum(s.operand.nbytes for s in r.streams if is_kept_in_rows(s.operand)) for r in readers]
    bytes_of = {**stored_bytes(scan), **dict.fromkeys(computed, 0)}
    new = [v for v in cut.stored if v not in available(scan)]
    free = sum(v.nbytes - bytes_of.get(v, v.nbytes) for v in new)
    saved = cut.old_bytes - cut.new_bytes + free * scan.length
    return cost_model().is_visible(saved, max(read, default=0))


def _labels(values: Iterable[Value]) -> str:
    return ", ".join(dict.fromkeys(value.label for value in values))
