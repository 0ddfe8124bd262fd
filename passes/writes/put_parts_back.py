"""Put the parts of an array that were written to back into it, not all parts into a new array.

Before::

    r = slice[0:1] a
    s = slice[1:2] a
    w = dynamic_update_slice r v 0 t
    b = concatenate w s

After::

    w = dynamic_update_slice r v 0 t
    b = dynamic_update_slice a w 0 0

A decoder takes the cache of each layer, or keys and values, out of one array, writes a position,
and stacks the caches again: each step copies all of them. Sound when

1. what is put together are all parts of one array, and has its type: side by side, or as a sum of
   each in zeros where the others are, up to the sign of zero;
2. each part is read of it at a known place, in range, with its elements in their order;
3. the parts follow each other along one axis, and have the same place along all others;
4. where they are put together, as many elements come before that axis as in the array.

Cost: of parts of which a window is written, `write-to-whole-arrays` then writes the window to the
array, in place. If that is refused, the array is copied, and each part too: so nothing else reads
the array or a part as it was before, and little of each part is written.
Source: https://github.com/keras-team/keras-hub/pull/2781.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
from jax import lax

from jaxpr_opt.analysis.carried.overwritten import comes_late
from jaxpr_opt.analysis.writes.put_parts import STACKING, Part, Parts, put_parts
from jaxpr_opt.bridge.slicing import read_window, write_window
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Use, Value
from jaxpr_opt.ir.nesting import is_not_before
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class PutTogether(Match):
    """All parts of an array, some of them written to."""

    parts: Parts


@dataclass(frozen=True)
class PutPartsBack(Pass[PutTogether]):
    """All parts of an array, some written to, are put together -> these are put back."""

    name: ClassVar[str] = "put-parts-back"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = STACKING
    needs: ClassVar[frozenset[str]] = frozenset({"concatenate", "pad", "stack"})

    def find(self, op: Op) -> Iterator[PutTogether]:
        found = put_parts(op)  # (1), (2), (3), (4)
        if found is not None and any(part.writes for part in found.each):
            says = f"parts of {found.array.label} that are written to are put back into it"
            yield PutTogether(op, says, found)

    def refuse(self, match: PutTogether) -> str | None:
        parts = match.parts
        written = [part for part in parts.each if part.writes]
        others = set(parts.array.users) - {part.read.op for part in parts.each}
        first = [part.writes[-1].op for part in written]
        if any(is_not_before(user, write) for user in others for write in first):
            return "the array is read as it was before"
        if not all(map(_is_only_written, written)):
            return "a part is read as it was before"
        model = cost_model()
        if any(model.is_most(w.nbytes, p.read.nbytes) for p in written for w in p.writes):
            return "most of a part is written"
        return None

    def rewrite(self, match: PutTogether, rw: Rewriter) -> None:
        region, whole = match.op.region, match.parts.array
        assert region is not None
        written = [(write, part) for part in match.parts.each for write in part.writes]
        for write, part in sorted(written, key=lambda each: region.order(each[0].op)):
            value, after = write.op.result, write.op.next
            assert after is not None
            whole = rw.insert(partial(_put, part), whole, value, before=after)
            read = rw.insert(partial(_get, part, value.shape), whole, before=after)
            rw.replace(value, read, partial(_is_other, _made_for(whole)))
        rw.replace(match.op.result, whole)
        rw.erase(match.op)


def _put(part: Part, array: jax.Array, value: jax.Array) -> jax.Array:
    return write_window(array, lax.reshape(value, part.sizes), part.starts)


def _get(part: Part, shape: tuple[int, ...], array: jax.Array) -> jax.Array:
    return lax.reshape(read_window(array, part.starts, part.sizes), shape)


def _made_for(whole: Value) -> set[Op | None]:
    """A write to the whole array, and what gives its value its shape."""
    assert whole.op is not None
    return {whole.op, whole.op.operands[1].op}


def _is_other(ops: set[Op | None], use: Use) -> bool:
    return use.op not in ops


def _is_only_written(part: Part) -> bool:
    """Whether no version of a part is read once the next is written, or as well before."""
    version, made = part.read.op.result, set[Op]()
    for write in reversed(part.writes):
        chain = [version]
        value = write.array
        while value is not version:
            assert value.op is not None
            made.add(value.op)
            chain.append(value)
            (value,) = value.op.operands
        users = {user for each in chain for user in each.users} - made - {write.op}
        if any(comes_late(user, write.op) for user in users):
            return False
        version = write.op.result
    return True
