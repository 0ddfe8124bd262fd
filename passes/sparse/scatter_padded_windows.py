"""Add padded windows by the scatter that adds others to the same array.

Before::

    c_n = scan[n] carry(c=c_0) xs(u=us, v=vs, i=is) {
      z = broadcast_in_dim 0.0
      p = pad v 0.0
      s = scatter-add z i u
      t = add_any p s
      d = add_any c t
      yield carry(d)
    }

After::

    c_n = scan[n] carry(c=c_0) xs(u=us, v=vs, i=is) {
      z = broadcast_in_dim 0.0
      p = scatter-add z [[3]] v
      s = scatter-add z i u
      t = add_any p s
      d = add_any c t
      yield carry(d)
    }

A table that is read at places from the data and at fixed places, too: `jnp.interp` reads the first
and the last number, and a vector of all parameters is cut into pieces. XLA adds all scatters of a
sum to the array in place, unless one term is dense. Sound when

1. a term is zero but for a window at a known place, as `pad` and `concatenate` make it, and only
   the sum reads it; ``z + v`` is ``v``, up to the sign of zero;
2. no two padded windows have an element in common: XLA adds scatters one after the other, but dense
   terms to each other first;
3. windows of the scatter tile the padded window, and its index can say where they are.

Cost: the windows instead of the array. Only in a loop that updates the array in place, if the
windows are small beside it, and if all other terms are scatters, one of them of several windows
(`accumulate-sparse-cotangents` adds windows without one), which XLA joins. In the final phase: no
pass follows the windows any more. Gradients of loops of 400 steps (CPU, jax 0.10 and 0.12), of the
time of plain JAX: `jnp.interp` at 8 places in 4096 numbers 0.16 to 0.30, without it 0.7 to 1.5; a
table of rows whose first and last row are read by selects 0.04 to 0.18, without it 0.6 to 1.0; a
vector of 20,000 parameters 0.02 to 0.06, without it 1.6 to 2.
Source: XLA's algebraic simplifier, which merges sums of scatters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

from jaxpr_opt.analysis.carried.buffers import is_updated_in
from jaxpr_opt.analysis.carried.overwritten import is_read_late
from jaxpr_opt.analysis.masks.parts import summands
from jaxpr_opt.analysis.sparse.disjoint_pieces import apart
from jaxpr_opt.analysis.sparse.scatter_chains import Piece, added
from jaxpr_opt.analysis.values.enclosing import loop_of
from jaxpr_opt.builders.sparse.tiled_windows import are_joined, are_tiles, scattered
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.cost.work import is_wide
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Phase, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import SUMS
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class Padded(Match):
    """A sum of `array`, which the op `adds` adds to, of `pads`, and of `scatters`."""

    array: Value
    adds: Op
    pads: tuple[Piece, ...]
    scatters: tuple[Op, ...]

    @property
    def nbytes(self) -> int:
        """Of all windows together."""
        scattered = sum(each.operands[2].nbytes for each in self.scatters)
        return scattered + sum(pad.nbytes for pad in self.pads)


@dataclass(frozen=True)
class ScatterPaddedWindows(Pass[Padded]):
    """Zeros around a window, added to scatters -> a scatter of the window."""

    name: ClassVar[str] = "scatter-padded-windows"
    whole_arrays: ClassVar[bool] = True
    phase: ClassVar[Phase] = "final"
    primitives: ClassVar[frozenset[str]] = SUMS
    needs: ClassVar[frozenset[str]] = frozenset({"scatter-add"})

    def find(self, op: Op) -> Iterator[Padded]:
        loop = loop_of(op)
        more = [user for user in op.result.users if user.name in SUMS]
        if loop is None or any(op in summands(user)[0] for user in more):
            return
        sums, terms = summands(op)
        arrays = [term for term in terms if is_updated_in(term, loop)]
        if len(arrays) == 1:
            yield from _padded(sums, arrays[0], terms)

    def refuse(self, match: Padded) -> str | None:
        array, scatter = match.array, match.scatters[0]
        if is_read_late(array, match.adds):
            return f"{array.label} is read afterwards, so XLA would copy it"
        pairs = combinations(match.pads, 2)
        if not all(apart(a.window, b.window) for a, b in pairs):  # (2)
            return "padded windows overlap, and the order of their sum would change"
        if not all(are_tiles(scatter, pad) for pad in match.pads):  # (3)
            return "the scatter adds windows of another form"
        if not are_joined(match.scatters):
            return "XLA does not join the scatters"
        if not cost_model().is_sparse(match.nbytes, array.nbytes):
            return f"the windows together are as large as {array.label}"
        return None

    def rewrite(self, match: Padded, rw: Rewriter) -> None:
        for pad in match.pads:
            fun = scattered(match.scatters[0], pad)
            made = rw.typed(fun, pad.result.aval, pad.update, before=pad.op)
            rw.replace(pad.result, made)
            rw.erase(pad.op)


def _padded(sums: tuple[Op, ...], array: Value, terms: list[Value]) -> Iterator[Padded]:
    """The sum, if all terms but the array are zero but for windows, some of them padded."""
    pads: list[Piece] = []
    scatters: list[Op] = []
    for term in terms:
        chain = added(term)
        is_alone = chain.starts_at_zero and len(chain.links) == len(term.uses) == 1  # (1)
        link = chain.links[0] if is_alone else None
        if isinstance(link, Piece) and link.starts:  # (1)
            pads.append(link)
        elif isinstance(link, Piece) and link.op.name == "scatter-add":
            scatters.append(link.op)
        elif term is not array:
            return
    if pads and any(map(is_wide, scatters)):
        op, few = sums[0], bytes_text(sum(pad.nbytes for pad in pads))
        says = f"{few} are scattered, not padded to {bytes_text(array.nbytes)}"
        adds = next(each for each in sums if array in each.operands)
        yield Padded(op, says, array, adds, tuple(pads), tuple(scatters), about=op.result)
