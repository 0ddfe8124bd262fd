"""Write windows into the whole array instead of into its disjoint parts, which are then added.

Before::

    a = select_n p c 0
    b = select_n p 0 c
    w = write b i u
    s = add_any a w

After::

    a = select_n p c 0
    r = read a i
    v = add_any r u
    s = write c i v

The transpose of a select splits a cotangent into parts, each zero where the others are not: two, or
as many as a `switch` has branches. The transpose of the selected code writes into them, or adds to
them; the sum of the parts touches three whole arrays in every step of a loop. Where several parts
were written to, each window of the sum is the sum of what all of them have there. Sound when

1. all that is added are parts of one array by one predicate, or parts of such a part by another,
   each element in one of them: x + 0 is x, up to the sign of zero; and one array more at most, as
   the order of a sum with two would change;
2. each write is of one window, or one in each row of a batch, so that no element is written twice
   (`jaxpr_opt.analysis.windows.access`); reads mirror writes, so that windows out of range are
   clamped alike, and dropped ones have no effect;
3. windows that may coincide are compared (`forward-written-windows`), where several parts were
   written to, or a window was added to after another was written: sums keep their order;
4. no op reads more of the parts than windows, which are then selected by themselves
   (`narrow-reads`); nor more of the intermediate arrays than windows that can be compared.

Cost: one read of a window of each part for each write, and no longer the array: less, unless the
windows are most of it.
Source: https://github.com/jax-ml/jax/issues/8192, under `jax.grad`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jax import lax

from jaxpr_opt.analysis.masks.parts import SelectedPart, joined, part, summands
from jaxpr_opt.analysis.values.constants import is_weak, strong, uniform
from jaxpr_opt.analysis.windows.access import Access, access, reads_window
from jaxpr_opt.analysis.windows.coinciding import are_comparable
from jaxpr_opt.analysis.windows.window_primitives import is_same_window
from jaxpr_opt.builders.sparse.summed_windows import write_sum
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import SUMS


@dataclass(frozen=True, slots=True, eq=False)
class SumOfParts(Match):
    """A sum of all the parts of an array."""

    whole: Value
    parts: tuple[SelectedPart, ...]
    rest: Value | None
    """Another term of the sum."""
    sums: tuple[Op, ...]
    """The additions, last to first."""

    @property
    def writes(self) -> list[Access]:
        """Of all parts, those of one part first to last."""
        return [write for each in self.parts for write in each.writes]

    @property
    def is_simple(self) -> bool:
        """Whether one part was written to, and no window added to after another was written."""
        kinds = [write.kind for write in self.writes]
        return sum(bool(each.writes) for each in self.parts) <= 1 and "add" not in kinds[1:]

    @property
    def clears(self) -> bool:
        """Whether only zeros are written: what else is added may be added afterwards."""
        return all(w.kind == "write" and uniform(w.value) == 0 for w in self.writes)


@dataclass(frozen=True)
class JoinSelectedParts(Pass[SumOfParts]):
    """The sum of the parts of an array, of which some were written to, is written to."""

    name: ClassVar[str] = "join-selected-parts"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = SUMS
    needs: ClassVar[frozenset[str]] = frozenset({"select_n"})

    def find(self, op: Op) -> Iterator[SumOfParts]:
        if not all(part(v, op) is not None or _is_sum(v) for v in op.operands):
            return  # most sums are told to be of something else by one look
        sums, terms = summands(op)
        found = [(term, part(term, op)) for term in terms]
        parts = tuple(known for _, known in found if known is not None)
        rest = [term for term, known in found if known is None]
        whole = joined(parts) if parts and len(rest) <= 1 else None
        if whole is not None and all(term.shape == whole.shape for term in terms):  # (1)
            says = f"disjoint parts of {whole.label} are written in place, not added"
            other = rest[0] if rest else None
            yield SumOfParts(op, says, whole, parts, other, sums, about=op.result)

    def refuse(self, match: SumOfParts) -> str | None:
        path = {*match.sums, *(write.op for write in match.writes)}
        for each in match.parts:
            whole = (
                u for u in each.before.users if u not in path and not reads_window(u, each.before)
            )
            user = next(whole, None)
            if user is not None:
                return f"{user.name} reads a whole part"  # (4)
        for op in path - {match.op}:
            for user in op.result.users:
                if user not in path and not _is_read_around(user, op.result, match):
                    return f"what {op.name} makes is read elsewhere, too"  # (4)
        if not match.is_simple and not _are_comparable(match.writes):
            return "a written window is added to, and the order of the sum would change"  # (3)
        windows = sum(write.nbytes for write in match.writes)
        if cost_model().is_most(windows, match.whole.nbytes):
            return "the windows are most of the array"
        return None

    def rewrite(self, match: SumOfParts, rw: Rewriter) -> None:
        op, version = match.op, match.whole
        terms = {v.result: v.before if match.is_simple else v.result for v in match.parts}
        if (rest := match.rest) is not None and match.clears:
            terms[rest] = rw.full(0, rest.aval, before=op)
        elif rest is not None:
            version = rw.typed(lax.add, op.result.aval, version, rest, before=op)
            terms[rest] = rest
        for each in match.parts:
            for write in each.writes:
                if not match.is_simple:
                    version = write_sum(version, terms, write, match.sums, rw)
                elif write.kind == "write" or rest is not None:
                    own = None if write.kind == "write" else write.op.result
                    there = {**terms, each.result: own}
                    version = write_sum(version, there, write, match.sums, rw)
                else:
                    operands = version, write.value, *write.indices
                    version = rw.typed(write.again, write.op.result.aval, *operands, before=op)
        if rest is not None and match.clears:
            version = rw.typed(lax.add, op.result.aval, version, rest, before=op)
        if is_weak(version) != is_weak(op.result):
            version = rw.typed(strong, op.result.aval, version, before=op)
        rw.replace(op.result, version)
        for made in (*match.sums, *(write.op for write in reversed(match.writes))):
            if not made.result.uses:
                rw.erase(made)


def _is_sum(value: Value) -> bool:
    return value.op is not None and value.op.name in SUMS


def _is_read_around(user: Op, value: Value, match: SumOfParts) -> bool:  # (4)
    """Whether an op reads a window of a written part, that can be read of the part as it was."""
    read = access(user) if reads_window(user, value) else None
    writes = [write for write in match.writes if write.op.result is value]
    return read is not None and all(
        is_same_window(user, write.op) or are_comparable(read, write) for write in writes
    )


def _are_comparable(writes: list[Access]) -> bool:  # (3)
    return all(are_comparable(write, writes[0]) for write in writes)
