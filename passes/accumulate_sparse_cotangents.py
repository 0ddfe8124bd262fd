"""Add a piece where it belongs, instead of a dense array of zeros with the piece in it.

Before::

    c = scan[n] carry(c=b) xs(u=us, i=is) {
      z = broadcast_in_dim 0.0
      p = dynamic_update_slice z u i
      a = add_any c p
      yield carry(a)
    }

After::

    c = scan[n] carry(c=b) xs(u=us, i=is) {
      r = dynamic_slice c i
      s = add r u
      a = dynamic_update_slice c s i
      yield carry(a)
    }

The transposes of reads make such arrays: `dynamic_update_slice`, `scatter` and `scatter-add` into
zeros, `pad`, `concatenate`, sums of these, and loops that add them up.

Sound when

1. the array the pieces are put in is zero everywhere else, as acc + 0 is acc, up to the sign of
   zero; with its pieces in it, it is read by the sum only;
2. no element gets two pieces, as ``acc + (u + v)`` is not ``(acc + u) + v``: windows of several
   pieces are proved disjoint, those of one `scatter-add` unique, and those of the steps of an inner
   loop, which then adds to the accumulator itself, to be one after the other; for integers it is
   the same;
3. the sum has the type of the accumulator, weak type included.

Where (2) does not hold, most of all where an inner loop adds one piece a step, a table read at
indices from the data, the pieces are added up as they were, but in a second array that the outer
loop carries, and which is zero between its steps.  They are then moved window by window: added to
the accumulator, and cleared, so that a window that comes again adds zero::

    c, s = scan[n] carry(c=b, s=z) xs(us=us, is=is) {
      t = scan[m] carry(t=s) xs(u=us, i=is) { ..t[i] += u..; yield carry(t) }
      a, t1 = scan[m] carry(a=c, t=t) xs(i=is) { ..a[i] += t[i]; t[i] = 0..; yield carry(a, t) }
      yield carry(a, t1)
    }

Cost: a step costs the window instead of the array.  It fires only in the body of a loop where the
accumulator is a buffer updated in place, which nobody reads afterwards: elsewhere one dense sum,
which XLA fuses with what makes its operands, is as fast (4 MB on CPU: 62 us dense, 89 us in place).
XLA finds the simplest case itself, but not pads, sums of pieces, batches of writes and nested loops
(500 steps, table of 128 KB, on CPU: two pieces 11.6 ms before and 11 us after, an inner loop over
four 1.1 ms and 27 us).  A second array is carried only if the windows are small beside it.
Source: XLA's algebraic simplifier; Shaikhha et al., "Efficient Differentiable Programming in a
Functional Array-Processing Language", arXiv:1806.02136 (what a dense one-hot cotangent costs).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from math import prod
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.access import WRITES, Extent, access
from jaxpr_opt.analysis.affine import Affine
from jaxpr_opt.analysis.buffers import MAX_ADDED, renames
from jaxpr_opt.analysis.constants import is_weak, uniform
from jaxpr_opt.analysis.expressions import same_expression
from jaxpr_opt.ir import Carry, Op, Scan, Stack, Value, While, dominates
from jaxpr_opt.journal import Waste
from jaxpr_opt.pipeline import Match, Pass
from jaxpr_opt.rewriter import Rewriter
from jaxpr_opt.traits import is_pure

SUMS = frozenset({"add", "add_any"})
ADDING = frozenset({"scatter-add", "scatter_add"})
SCATTERS = frozenset({"scatter", *ADDING})
MAX_PIECES = 32
"""Terms of a sum that are looked at."""
LARGE, SLOWER = 1 << 18, 8
"""XLA compiles a small loop as one function, which it does not do to loops over large arrays."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """`op` adds `update` to a window of `base`, or of zeros if that is None."""

    op: Op
    base: Value | None
    update: Value
    indices: tuple[Value, ...] = ()
    starts: tuple[int, ...] = ()
    """Where the window is, if that does not depend on operands."""

    @property
    def result(self) -> Value:
        return self.op.result

    @property
    def nbytes(self) -> int:
        return self.update.nbytes

    @property
    def count(self) -> int:
        """How many windows are touched."""
        return 1

    @property
    def innermost(self) -> Piece:
        """The op that puts something into zeros."""
        return self

    @property
    def is_dense(self) -> bool:
        """Whether XLA makes the array: it sees through writes and scatters in the step itself."""
        return self.op.name not in WRITES

    def read(self, array: Any, *indices: Any) -> Any:
        """The window of `array`, with the shape of the update."""
        if self.op.name in SCATTERS:
            return _mirrored(self.op, array, *indices)
        where = indices or self._constants  # indices are normalised: bound, not called again
        return lax.dynamic_slice_p.bind(array, *where, slice_sizes=self.update.shape)

    def write(self, array: Any, value: Any, *indices: Any) -> Any:
        """`array` with `value` in the window."""
        if self.op.name in SCATTERS:
            numbers, kept = self.op.params["dimension_numbers"], _kept(self.op)
            return lax.scatter(array, indices[0], value, numbers, **kept)
        return lax.dynamic_update_slice_p.bind(array, value, *(indices or self._constants))

    def add(self, array: Any, update: Any, *indices: Any) -> Any:
        """`array` with `update` added to the window."""
        if self.op.name in ADDING:
            assert self.op.primitive is not None
            return self.op.primitive.bind(array, *indices, update, **self.op.params)
        return self.write(array, lax.add(self.read(array, *indices), update), *indices)

    @property
    def _constants(self) -> tuple[Any, ...]:
        return tuple(np.int32(start) for start in self.starts)

    @property
    def repeats(self) -> bool:
        """Whether an element may be added to twice; of several that are written, one stays."""
        if self.op.name not in ADDING:
            return False
        batched = self.op.params["dimension_numbers"].scatter_indices_batching_dims
        lead = self.indices[0].shape[:-1]
        windows = prod(n for d, n in enumerate(lead) if d not in batched)
        return windows > 1 and not self.op.params["unique_indices"]

    @property
    def window(self) -> tuple[Extent, ...]:
        """Where it adds; nothing if that cannot be told."""
        if self.starts:
            sizes = zip(self.starts, self.update.shape, strict=True)
            return tuple(Extent(Affine(start), size) for start, size in sizes)
        found = access(self.op)
        return found.window if found is not None else ()


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The loop `op` does nothing with a carry but add pieces to it, the same windows each step."""

    op: Scan
    carry: Carry
    inner: Chain

    @property
    def base(self) -> Value:
        return self.carry.init

    @property
    def result(self) -> Value:
        return self.carry.result

    @property
    def nbytes(self) -> int:
        return self.op.length * self.inner.nbytes

    @property
    def count(self) -> int:
        return self.op.length * sum(link.count for link in self.inner.links)

    @property
    def innermost(self) -> Piece:
        return self.inner.links[-1].innermost

    @property
    def is_dense(self) -> bool:
        return True


Link = Piece | Pieces


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Pieces added to `root` one after the other, or to zeros if it is None."""

    root: Value | None
    links: tuple[Link, ...]

    @property
    def starts_at_zero(self) -> bool:
        return bool(self.links) and (self.root is None or uniform(self.root) == 0)

    @property
    def nbytes(self) -> int:
        return sum(link.nbytes for link in self.links)


@dataclass(frozen=True, slots=True, eq=False)
class Sum(Match):
    """The op adds `chain`, which starts at zero and whose result is `dense`, to `array`."""

    array: Value
    dense: Value
    chain: Chain

    @property
    def loop(self) -> Pieces | None:
        """The loop that adds all pieces, each step to a window of its own, too wide to be stacked
        first (stack-carried-updates): it may add to the array itself (2).
        """
        (link, *others) = self.chain.links
        if others or not isinstance(link, Pieces) or len(link.inner.links) > 1:
            return None
        (piece,) = link.inner.links
        if not isinstance(piece, Piece) or piece.repeats or prod(piece.update.shape) <= MAX_ADDED:
            return None
        return link if _moves(piece, link.op) and dominates(self.array, link.op) else None

    @property
    def is_disjoint(self) -> bool:
        """Whether the pieces may be added one by one (2)."""
        pieces = [link for link in self.chain.links if isinstance(link, Piece)]
        if len(pieces) < len(self.chain.links):
            return False
        if not jnp.issubdtype(self.array.dtype, jnp.inexact):
            return True
        apart = all(_apart(a.window, b.window) for a, b in combinations(pieces, 2))
        return apart and not any(piece.repeats for piece in pieces)


@dataclass(frozen=True)
class AccumulateSparseCotangents(Pass):
    """Zeros with a piece in them, added to a buffer of a loop -> the piece added in place."""

    name: ClassVar[str] = "accumulate-sparse-cotangents"
    dense_factor: int = 4
    """How many times the windows must fit into the array, for a second one to be carried."""
    dense_bytes: int = 2048
    """Bytes of an array that are added up densely in the time of a step that moves a window; a
    loop over more than `LARGE` bytes takes `SLOWER` times as long a step on CPU.
    """

    primitives: ClassVar[frozenset[str]] = SUMS

    def find(self, op: Op) -> Iterator[Sum]:
        if not isinstance(op.parent, Scan | While):
            return  # the dense sum is as fast
        for array, dense in (op.operands, op.operands[::-1]):
            chain = _chain(dense)
            if chain.starts_at_zero:
                says = f"{chain.nbytes:,} bytes are added in place, not {array.nbytes:,}"
                at, waste = chain.links[-1].innermost.op, self._waste(array, chain)
                yield Sum(op, says, array, dense, chain, at=at, about=op.result, waste=waste)

    def _waste(self, array: Value, chain: Chain) -> Waste | None:
        is_dense = any(link.is_dense for link in chain.links)
        return "zeros" if is_dense and self.dense_factor * chain.nbytes <= array.nbytes else None

    def refuse(self, match: Sum) -> str | None:
        op, array, result = match.op, match.array, match.op.result
        if [use.op for use in match.dense.uses] != [op]:  # (1)
            return f"{match.dense.label} is read elsewhere"
        if array.shape != result.shape or is_weak(array) != is_weak(result):  # (3)
            return f"the sum is a {result.aval}, the accumulator a {array.aval}"
        assert isinstance(op.parent, Scan | While)
        if _read_after(array, op):
            return f"{array.label} is read afterwards, so that it would be copied"
        if not _is_buffer(array, op.parent):
            return f"{array.label} is made anew in each step"
        if match.is_disjoint or match.loop is not None:
            return None
        return self._why_not_moved(match)

    def _why_not_moved(self, match: Sum) -> str | None:
        """Why the pieces cannot be added up in an array of their own that the loop carries."""
        op, links = match.op, match.chain.links
        scan, size = op.parent, match.array.nbytes
        if len(links) == 1 and isinstance(links[0], Piece):
            return "windows may repeat: which order they are added in would change"
        if not isinstance(scan, Scan):
            return "pieces may overlap: which order they are added in would change"
        if is_weak(op.result) or not op.result.aval.sharding.mesh.empty:
            return f"a second {op.result.aval} cannot be carried"
        if any(link.op.effects for link in links):
            return "the inner loop has effects"
        if any(map(_own_windows, links)):
            return "each step of the inner loop has a window of its own"
        touched = sum(link.count for link in links)
        step_bytes = self.dense_bytes * (SLOWER if size > LARGE else 1)
        if (
            scan.length < 2
            or self.dense_factor * match.chain.nbytes > size
            or step_bytes * touched > size
        ):
            return f"the array of {size:,} bytes is small beside its {touched:,} windows"
        return None

    def rewrite(self, match: Sum, rw: Rewriter) -> None:
        result = match.op.result
        if match.is_disjoint:
            made = _add(match, rw)
        elif (loop := match.loop) is not None:
            rw.set_operand(loop.op, loop.op.results.index(loop.result), match.array)
            made = loop.result
        else:
            made = _move(match, rw)
        rw.replace(result, made)
        _erase_unread(match.op, rw)


# ---------------------------------------------------------------- what is known of a sum


def _chain(value: Value, depth: int = 0) -> Chain:
    """The pieces that `value` is the sum of, and what they are added to."""
    op = value.op
    if op is None or depth > MAX_PIECES:
        return Chain(value, ())
    if op.name in SUMS:
        return _term(op, depth) or Chain(value, ())
    link = _link(value)
    if link is None:
        return Chain(value, ())
    if link.base is None or uniform(link.base) == 0:
        return Chain(link.base, (link,))
    before = _chain(link.base, depth + 1)
    return Chain(before.root, (*before.links, link))


def _term(op: Op, depth: int) -> Chain | None:
    """A piece that is an array of its own, added to others or to a carry."""
    for rest, dense in (op.operands, op.operands[::-1]):
        piece = _link(dense)
        if isinstance(piece, Piece) and (piece.base is None or uniform(piece.base) == 0):
            before = _chain(rest, depth + 1)
            owner = rest.region.owner if rest.op is None and rest.region is not None else None
            if isinstance(owner, Scan) or (before.starts_at_zero and not piece.repeats):
                return Chain(before.root, (*before.links, replace(piece, base=rest)))
    return None


def _link(value: Value) -> Link | None:
    """The last that was added to a value."""
    op = value.op
    if isinstance(op, Scan):
        return _repeated(op, value)
    if op is None or not jnp.issubdtype(value.dtype, jnp.number):
        return None
    if op.name == "pad":
        return _padded(op)
    if op.name == "concatenate":
        return _joined(op)
    if op.name == "dynamic_update_slice":
        array, update, *starts = op.operands
        return _written(Piece(op, array, update, tuple(starts)))
    if op.name not in SCATTERS:
        return None
    array, index, update = op.operands
    piece = Piece(op, array, update, (index,))
    if op.name in ADDING:
        return piece
    return _written(piece) if op.params.get("update_jaxpr") is None else None  # none applied


def _repeated(scan: Scan, result: Value) -> Pieces | None:
    """A carry to which each step adds pieces."""
    carry = scan.carry_of(result)
    if carry is None:
        return None
    inner = _chain(carry.next)
    return Pieces(scan, carry, inner) if inner.links and inner.root is carry.param else None


def _padded(op: Op) -> Piece | None:
    """An array with zeros around it."""
    array, filler = op.operands
    config = op.params["padding_config"]
    if uniform(filler) != 0 or any(low < 0 or high < 0 or inner for low, high, inner in config):
        return None
    return Piece(op, None, array, starts=tuple(low for low, _, _ in config))


def _joined(op: Op) -> Piece | None:
    """A concatenation of zeros and one array that is not."""
    axis, at, found = op.params["dimension"], 0, None
    for operand in op.operands:
        if uniform(operand) != 0:
            if found is not None:
                return None
            starts = [0] * len(operand.shape)
            starts[axis] = at
            found = Piece(op, None, operand, starts=tuple(starts))
        at += operand.shape[axis]
    return found


def _written(piece: Piece) -> Piece | None:
    """A write into zeros; or of what it replaces plus something."""
    assert piece.base is not None
    if uniform(piece.base) == 0:
        return piece
    added = piece.update.op
    if added is None or added.name not in SUMS:
        return None
    for old, update in (added.operands, added.operands[::-1]):
        if update.shape == piece.update.shape and _is_read_of(old, piece):
            return replace(piece, update=update)
    return None


def _is_read_of(value: Value, piece: Piece) -> bool:
    """Whether `value` is what a write replaces."""
    op, write = value.op, piece.op
    if op is None:
        return False
    if len(op.operands) != len(piece.indices) + 1 or op.operands[0] is not piece.base:
        return False
    pairs = zip(op.operands[1:], piece.indices, strict=True)
    if not all(same_expression(a, b, {}) for a, b in pairs):
        return False
    if write.name == "dynamic_update_slice":
        return op.name == "dynamic_slice"
    numbers, sizes = _mirror(write)
    wanted = {"dimension_numbers": numbers, "slice_sizes": sizes, "mode": write.params["mode"]}
    return op.name == "gather" and all(op.params[k] == v for k, v in wanted.items())


def _apart(a: Sequence[Extent], b: Sequence[Extent]) -> bool:
    """Whether two windows never have an element in common."""
    for first, second in zip(a, b, strict=False):
        if first.start is None or second.start is None:
            continue
        distance = second.start - first.start
        if distance.is_constant and not -second.size < distance.offset < first.size:
            return True
    return False


def _read_after(array: Value, op: Op) -> bool:
    """Whether anybody but `op` reads `array` when `op` has run, or may."""
    region = op.region
    assert region is not None
    for user in array.users:
        around = region.ancestor(user)
        if around is None or (around is not op and region.order(around) > region.order(op)):
            return True
    return sum(use.op is op for use in array.uses) > 1


def _is_buffer(array: Value, loop: Scan | While) -> bool:
    """Whether the loop carries it, or it is such a carry with something written into it."""
    while (op := array.op) is not None and op.region is loop.body:
        if isinstance(op, Scan | While):
            return any(array is carry.result for carry in op.carries)
        if op.name not in WRITES and not renames(op):
            return False
        array = op.operands[0]
    return any(array is carry.param for carry in loop.carries)


def _own_windows(link: Link) -> bool:
    """Whether some loop's windows are known, and a step of it has one of its own."""
    if isinstance(link, Piece):
        return False
    return any(_moves(inner, link.op) or _own_windows(inner) for inner in link.inner.links)


def _moves(link: Link, loop: Scan) -> bool:
    """Whether a window is known, and no two steps of a loop have an element of it in common."""
    window = link.window if isinstance(link, Piece) else ()
    return bool(window) and any(
        extent.start is not None and abs(extent.start.steps.get(loop, 0)) >= extent.size
        for extent in window
    )


# ---------------------------------------------------------------- reads that mirror writes


def _kept(op: Op) -> dict[str, Any]:
    """The parameters that a gather and a scatter have in common."""
    return {k: op.params[k] for k in ("indices_are_sorted", "unique_indices", "mode")}


def _mirror(op: Op) -> tuple[lax.GatherDimensionNumbers, tuple[int, ...]]:
    """How a gather reads the windows that a scatter writes, and their size."""
    numbers = op.params["dimension_numbers"]
    array, _, update = op.operands
    missing = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    kept = iter(numbers.update_window_dims)
    sizes = tuple(
        1 if axis in missing else update.shape[next(kept)] for axis in range(len(array.shape))
    )
    mirrored = lax.GatherDimensionNumbers(
        offset_dims=numbers.update_window_dims,
        collapsed_slice_dims=numbers.inserted_window_dims,
        start_index_map=numbers.scatter_dims_to_operand_dims,
        operand_batching_dims=numbers.operand_batching_dims,
        start_indices_batching_dims=numbers.scatter_indices_batching_dims,
    )
    return mirrored, sizes


def _mirrored(op: Op, array: Any, index: Any) -> Any:
    """The windows that a scatter writes; those out of range, which it drops, read as zero."""
    numbers, sizes = _mirror(op)
    return lax.gather(array, index, numbers, sizes, fill_value=0, **_kept(op))


# ---------------------------------------------------------------- rewriting


def _add(match: Sum, rw: Rewriter) -> Value:
    """Add the pieces one by one."""
    made = match.array
    for link in match.chain.links:
        assert isinstance(link, Piece)
        operands = (made, link.update, *link.indices)
        made = rw.typed(link.add, match.op.result.aval, *operands, before=match.op)
    return made


def _move(match: Sum, rw: Rewriter) -> Value:
    """Add the pieces up in an array of zeros that the loops carry, then move them."""
    links, loops = match.chain.links, _loops(match.op)
    filled = start = _carried_zeros(match.dense.aval, loops, rw)
    for number, link in enumerate(links):
        if isinstance(link, Pieces):
            rw.set_operand(link.op, link.op.results.index(link.result), filled)
            filled = link.result
        else:
            following = (each.op for each in links[number:] if isinstance(each, Pieces))
            operands = (filled, link.update, *link.indices)
            filled = rw.insert(link.add, *operands, before=next(following, match.op))
    moves = [_exposed(link, rw) for link in links]
    total, cleared = _moved(moves, match.array, filled, match.op, rw, {})
    for loop in loops:  # from the inside out: each hands the cleared array to its next step
        carries = [replace(c, next=cleared) if c.param is start else c for c in loop.carries]
        ((start, cleared),) = [(c.init, c.result) for c in carries if c.next is cleared]
        rw.set_scan(loop, carries=carries)
    if match.chain.root is not None and match.chain.root.op is not None:
        _erase_unread(match.chain.root.op, rw)
    return total


def _loops(op: Op) -> list[Scan]:
    """The scans that an op is in, from the inside out, as long as there is nothing in between."""
    found: list[Scan] = []
    while isinstance(op.parent, Scan):
        op = op.parent
        found.append(op)
    return found


def _carried_zeros(aval: Any, loops: Sequence[Scan], rw: Rewriter) -> Value:
    """Zeros made before the outermost loop and carried by all, as they are in the innermost."""
    made = rw.insert(lambda: jnp.zeros(aval.shape, aval.dtype), before=loops[-1])
    for loop in reversed(loops):
        param, end = rw.new_value(aval, "scratch"), rw.new_value(aval)
        rw.set_scan(loop, carries=[*loop.carries, Carry(made, param, param, end)])
        made = param
    return made


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """A loop over the windows of a loop: `rows` are their indices, and arrays of these."""

    scan: Scan
    inner: list[Piece | Moves]
    rows: dict[Value, Value]


def _exposed(link: Link, rw: Rewriter) -> Piece | Moves:
    """Make the indices of a loop known outside of it."""
    if isinstance(link, Piece):
        return link
    scan = link.op
    inner = [_exposed(each, rw) for each in link.inner.links]
    rows: dict[Value, Value] = {}
    for value in (v for each in inner for v in _read_by(each)):
        if value in rows or not scan.body.defines(value):
            continue
        stream = scan.stream_of(value)
        stack = next((s for s in scan.stacks if s.value is value), None)
        if stream is not None:
            rows[value] = stream.operand
        elif stack is not None:
            rows[value] = stack.result
        else:
            rows[value] = rw.new_value(rw.stacked_aval(value, scan.length), value.name)
            rw.set_scan(scan, stacks=[*scan.stacks, Stack(value, rows[value])])
    return Moves(scan, inner, rows)


def _read_by(move: Piece | Moves) -> Sequence[Value]:
    if isinstance(move, Piece):
        return move.indices
    inside = [v for each in move.inner for v in _read_by(each) if v not in move.rows]
    return [*move.rows.values(), *inside]


def _moved(
    moves: Sequence[Piece | Moves],
    total: Value,
    scratch: Value,
    before: Op,
    rw: Rewriter,
    here: dict[Value, Value],
) -> tuple[Value, Value]:
    """Move every window from `scratch` to `total`; `here` is what indices are before `before`."""
    for move in moves:
        if isinstance(move, Piece):
            indices = [here.get(v, v) for v in move.indices]
            take = partial(_take, move)
            total, scratch = rw.insert_many(take, total, scratch, *indices, before=before)
            continue
        rows = list(move.rows)
        body = rw.new_region([total, scratch, *rows])
        inside = {**here, **dict(zip(rows, body.params[2:], strict=True))}
        scan = rw.new_scan(
            body,
            [total, scratch],
            [here.get(v, v) for v in move.rows.values()],
            [],
            length=move.scan.length,
            reverse=move.scan.reverse,
            like=move.scan,
            before=before,
        )
        start, zeros = body.params[:2]
        ends = _moved(move.inner, start, zeros, body.terminator, rw, inside)
        rw.set_outputs(body, ends)
        total, scratch = scan.results
    return total, scratch


def _take(piece: Piece, total: Any, scratch: Any, *indices: Any) -> tuple[Any, Any]:
    """Add a window of `scratch` to `total` and clear it.

    It is cleared with zeros that are computed from the sum, as nothing exceeds infinity: else XLA
    does not know that the sum comes first, and copies `scratch` in every step (jax 0.10 to 0.12).
    """
    old, window = piece.read(total, *indices), piece.read(scratch, *indices)
    total = piece.write(total, lax.add(old, window), *indices)
    moved = piece.read(total, *indices)
    size = lax.real(moved) if jnp.iscomplexobj(moved) else moved
    zero = lax.convert_element_type(lax.gt(size, lax.full_like(size, np.inf)), moved.dtype)
    return total, piece.write(scratch, zero, *indices)


def _erase_unread(op: Op, rw: Rewriter) -> None:
    """Erase an op that nobody reads any more, and what was computed for it alone."""
    if op.region is None or op.regions or not is_pure(op) or any(v.uses for v in op.results):
        return
    operands = op.operands
    rw.erase(op)
    for value in operands:
        if value.op is not None:
            _erase_unread(value.op, rw)
