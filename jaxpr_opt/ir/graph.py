"""The Graph: a jaxpr whose regions may use outer values.

::

    graph   ::=  fn (param*) { op* return value* }
    region  ::=  { op* yield value* }
    op      ::=  value* = primitive value* params          -- one equation, or an opaque one
              |  value* = scan[length] carry(...) xs(...) region
              |  value* = while carry(...) region region   -- predicate, body
              |  value* = cond value region+               -- branches
              |  value* = remat region
              |  value* = call value* region               -- jit with options, shard_map
              |  value  = undefined                        -- may become any value
    value   ::=  result of an op | parameter of a region | constant

Jaxprs are closed: a ``scan`` body or a ``cond`` branch threads what it uses through constants and
operands by position.  Here a region uses any value of an enclosing region directly, as in MLIR's
``scf`` dialect: an invariant *is* the outer value, and hoisting is moving an op.  The only
exception is `Call`, whose region is isolated: it sees its own parameters and constants.

Every region ends in a terminator whose operands are its outputs, so outputs are ordinary uses.
Roles are named: a `Scan` has `carries`, `streams` (extensive inputs, ``xs``) and `stacks`
(extensive outputs, ``ys``); a pass never computes ``num_consts + i``.

Identity is equality: two ops are the same op or they are not.  All orders are program orders,
hence deterministic.  Only `rewriter` and the importer may write a field of these classes.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from jax.extend.core import Primitive

from jaxpr_opt.bridge import compat_source, dtypes
from jaxpr_opt.bridge.parameters import has_length, length_of, reverse_of
from jaxpr_opt.ir.aliases import Aliasing

Phase = Literal["differentiable", "differentiated", "final"]
"""What JAX may still do to a program: differentiate it; differentiate it again, as it computes
cotangents, or is about to; nothing."""

TERMINATOR = "yield"
UNDEFINED = "undefined"


_quotes: ContextVar[bool] = ContextVar("jaxpr_opt_quotes", default=False)


@contextlib.contextmanager
def in_words_of_the_source() -> Iterator[None]:
    """Labels quote the source inside, which takes time: where people read what passes did."""
    token = _quotes.set(True)
    try:
        yield
    finally:
        _quotes.reset(token)


class Use(NamedTuple):
    """One place a value is read: operand `position` of `op`."""

    op: Op
    position: int


class Value:
    """An SSA value: the result of an `Op` or a parameter of a `Region`."""

    __slots__ = ("aval", "name", "owner", "uses")

    aval: Any
    """The JAX abstract value: shape, dtype, weak_type, sharding."""
    owner: Op | Region | None
    """The op it is a result of, the region it is a parameter of, or None for a constant."""
    name: str
    """A hint for printing, from the source where JAX knows one; not unique."""
    uses: dict[Use, None]
    """Insertion-ordered, so that visiting order is deterministic."""

    def __init__(self, aval: Any, owner: Op | Region | None = None, name: str = "") -> None:
        self.aval, self.owner, self.name, self.uses = aval, owner, name, {}

    @property
    def op(self) -> Op | None:
        """The op that computes this value, None for parameters and constants."""
        return self.owner if isinstance(self.owner, Op) else None

    @property
    def position(self) -> int:
        """Its place among the results of its op, or the parameters of its region."""
        assert self.owner is not None, "a constant is nobody's result"
        return self.owner.places[self]

    @property
    def region(self) -> Region | None:
        """The region in which this value is defined; None for constants, which are defined
        everywhere.
        """
        return self.owner.region if isinstance(self.owner, Op) else self.owner

    @property
    def shape(self) -> tuple[int, ...]:
        return getattr(self.aval, "shape", ())

    @property
    def dtype(self) -> Any:
        return getattr(self.aval, "dtype", None)

    @property
    def size(self) -> int:
        """How many elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of one copy; 0 for what has no size (tokens, refs)."""
        return aval_bytes(self.aval)

    @property
    def label(self) -> str:
        """The name a reader of the source would use: the value's own, or the op that makes it, or
        its type.

        `cos of jnp.sin(x)` is an op that the user's expression makes.
        """
        if self.name or self.op is None:
            return self.name or self.type
        quotes = _quotes.get() and not self.op.regions
        expression = compat_source.user_expression(self.op.source.info) if quotes else ""
        return f"{self.op.name} of `{expression}`" if expression else self.op.name

    @property
    def type(self) -> str:
        """Its type for people, as `f32[8,3]`."""
        return dtypes.type_text(self.aval)

    @property
    def exact_type(self) -> str:
        """Its type, and whether that is weak, as `~f32[8,3]`."""
        return f"~{self.type}" if self.aval.weak_type else self.type

    @property
    def users(self) -> list[Op]:
        """The ops that read this value, each once, in order."""
        return list(dict.fromkeys(use.op for use in self.uses))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name or '?'}:{self.aval}>"


class _Places:
    """Where each of some values is among them."""

    __slots__ = ("of", "values")

    def __init__(self, values: tuple[Value, ...]) -> None:
        self.values = values
        self.of = {value: place for place, value in enumerate(values)}


class Constant(Value):
    """A literal scalar or a captured array: defined everywhere, owned by nobody."""

    __slots__ = ("value", "_scalar")

    def __init__(self, aval: Any, value: Any) -> None:
        super().__init__(aval)
        self.value = value

    @property
    def scalar(self) -> Any:
        """Its one element if all elements are equal and it is small enough to look at; else
        None.
        """
        if not hasattr(self, "_scalar"):
            self._scalar = self._looked_at()
        return self._scalar

    def _looked_at(self) -> Any:
        if self.nbytes > 256 or not dtypes.is_on_host(self.value):
            return None
        flat = np.asarray(self.value).reshape(-1)
        if not (flat.size and dtypes.is_array(flat.dtype) and (flat == flat[0]).all()):
            return None
        is_same = flat.tobytes() == flat[:1].tobytes() * flat.size  # 0.0 is not -0.0
        return flat[0] if is_same else None


class Op:
    """One operation.  First-order equations and everything not understood are plain `Op`s."""

    __slots__ = (
        "alone",
        "effects",
        "name",
        "next",
        "operands",
        "params",
        "prev",
        "primitive",
        "region",
        "regions",
        "results",
        "source",
        "_order",
        "_places",
    )

    name: str
    """The primitive's name, or `yield` and `undefined`, which have none."""
    primitive: Primitive | None
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    params: dict[str, Any]
    """The equation's parameters, verbatim."""
    regions: tuple[Region, ...]
    effects: frozenset[Any]
    """JAX effects of this op and of its regions."""
    source: Source
    """Where in the user's program it comes from, and under which context it is bound."""
    alone: bool
    """Whether XLA is to compile it by itself: a loop as one function, a write without readers."""
    region: Region | None
    """The region it is in; None once erased."""

    def __init__(
        self,
        name: str,
        operands: Iterable[Value],
        avals: Iterable[Any],
        *,
        primitive: Primitive | None = None,
        params: Mapping[str, Any] | None = None,
        regions: Iterable[Region] = (),
        effects: Iterable[Any] = (),
        source: Source | None = None,
    ) -> None:
        self.name, self.primitive = name, primitive
        self.params = dict(params or {})
        self.effects, self.source = frozenset(effects), source or Source()
        self.alone = False
        self.region: Region | None = None
        self.prev: Op | None = None
        self.next: Op | None = None
        self._order = 0
        self._places: _Places | None = None
        self.operands = ()
        self.results = tuple(Value(aval, self) for aval in avals)
        self.regions = tuple(regions)
        for region in self.regions:
            region.owner = self
        self._set_operands(tuple(operands))

    def _set_operands(self, operands: tuple[Value, ...]) -> None:
        for index, value in enumerate(self.operands):
            del value.uses[Use(self, index)]
        self.operands = operands
        for index, value in enumerate(operands):
            value.uses[Use(self, index)] = None

    def _set_operand(self, index: int, value: Value) -> None:
        use = Use(self, index)
        del self.operands[index].uses[use]
        self.operands = (*self.operands[:index], value, *self.operands[index + 1 :])
        value.uses[use] = None

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value

    @property
    def places(self) -> dict[Value, int]:
        """The place of each result."""
        if self._places is None or self._places.values is not self.results:
            self._places = _Places(self.results)
        return self._places.of

    @property
    def parent(self) -> Op | None:
        """The op whose region holds this one; None at the top of a graph."""
        owner = self.region.owner if self.region is not None else None
        return owner if isinstance(owner, Op) else None

    @property
    def is_terminator(self) -> bool:
        return self.name == TERMINATOR

    def walk(self) -> Iterator[Op]:
        """This op, then every op inside it, in program order; see `Region.walk`."""
        yield self
        for region in self.regions:
            yield from region.walk()

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.name} -> {', '.join(str(v.aval) for v in self.results)}>"
        )


@dataclass(frozen=True, slots=True)
class Source:
    """Provenance of an op: JAX's source info and equation context, both opaque to passes."""

    info: Any = None
    ctx: Any = None
    transposes: int = 0
    """How many times JAX has transposed to make it: 1 in a gradient's backward half, 2 in that of
    the gradient of a gradient.
    """

    @property
    def transposed(self) -> bool:
        """Whether JAX made it by transposing a linear program: it computes cotangents, whose
        zeros are symbolic.
        """
        return self.transposes > 0


class Region:
    """A straight line of ops with parameters, ended by a terminator; a doubly linked list.

    Iterating `ops` allows removing the op just yielded and inserting anywhere; an op inserted
    right after the current one is visited.
    """

    __slots__ = ("first", "last", "owner", "params", "_numbered", "_places")

    def __init__(self, avals: Iterable[Any] = (), names: Iterable[str] = ()) -> None:
        self.params: tuple[Value, ...] = tuple(Value(aval, self) for aval in avals)
        for param, name in zip(self.params, names, strict=False):
            param.name = name
        self.owner: Op | Graph | None = None
        self.first: Op | None = None
        self.last: Op | None = None
        self._numbered = False
        self._places: _Places | None = None

    @property
    def places(self) -> dict[Value, int]:
        """The place of each parameter."""
        if self._places is None or self._places.values is not self.params:
            self._places = _Places(self.params)
        return self._places.of

    @property
    def ops(self) -> Iterator[Op]:
        """The ops in program order, the terminator last."""
        op = self.first
        while op is not None:
            following = op.next
            yield op
            op = op.next if op.region is self else following

    @property
    def terminator(self) -> Op:
        assert self.last is not None and self.last.is_terminator, "region without a terminator"
        return self.last

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The values that the region yields."""
        return self.terminator.operands

    @property
    def parent(self) -> Region | None:
        """The region around this one; None at the top of a graph and around an isolated region."""
        return (
            self.owner.region
            if isinstance(self.owner, Op) and not isinstance(self.owner, Call)
            else None
        )

    def walk(self) -> Iterator[Op]:
        """Every op in this region and below, parents first, in program order."""
        inside = [self.ops]  # no generator for each level: nests of loops are deep
        while inside:
            for op in inside[-1]:
                yield op
                if op.regions:
                    inside.extend(region.ops for region in reversed(op.regions))
                    break
            else:
                inside.pop()

    def contains(self, inner: Region | None) -> bool:
        """Whether `inner` is this region or nested in it."""
        while inner is not None:
            if inner is self:
                return True
            inner = inner.owner.region if isinstance(inner.owner, Op) else None
        return False

    def reads(self, use: Use) -> bool:
        """Whether a use is in this region or nested in it."""
        return self.contains(use.op.region)

    def defines(self, value: Value) -> bool:
        """Whether `value` is defined in this region or nested in it; its opposite is "invariant
        here".
        """
        return value.region is not None and self.contains(value.region)

    def captures(self) -> list[Value]:
        """Values from outside that the region reads, each once, in order of first use."""
        found: dict[Value, None] = {}
        inside: set[Region | None] = {self}
        for op in self.walk():
            inside.update(op.regions)  # before the ops in them
            for value in op.operands:
                if not isinstance(value, Constant) and value.region not in inside:
                    found[value] = None
        return list(found)

    def _insert(self, op: Op, before: Op | None) -> None:
        op.region, self._numbered = self, False
        op.next, op.prev = before, before.prev if before is not None else self.last
        if op.prev is None:
            self.first = op
        else:
            op.prev.next = op
        if before is None:
            self.last = op
        else:
            before.prev = op

    def _remove(self, op: Op) -> None:
        if op.prev is None:
            self.first = op.next
        else:
            op.prev.next = op.next
        if op.next is None:
            self.last = op.prev
        else:
            op.next.prev = op.prev
        op.region = None

    def _set_params(self, params: Iterable[Value]) -> None:
        self.params = tuple(params)
        for param in self.params:
            param.owner = self

    def ancestor(self, op: Op) -> Op | None:
        """The op of this region that `op` is, or is inside of; None if it is elsewhere."""
        around: Op | None = op
        while around is not None and around.region is not self:
            around = around.parent
        return around

    def order(self, op: Op) -> int:
        """Position of `op` in this region, for comparison only."""
        if not self._numbered:
            for number, each in enumerate(self.ops):
                each._order = number
            self._numbered = True
        return op._order


class Carry(NamedTuple):
    """A loop-carried value: `init` enters the loop, `param` is its value at the start of a step,
    `next` at the end of the step, and `result` after the loop.
    """

    init: Value
    param: Value
    next: Value
    result: Value

    @property
    def is_invariant(self) -> bool:
        return self.next is self.param


class Stream(NamedTuple):
    """An extensive input of a scan: row `i` of `operand` is `param` at step `i`."""

    operand: Value
    param: Value


class Stack(NamedTuple):
    """An extensive output of a scan: `value` of step `i` is row `i` of `result`."""

    value: Value
    result: Value


class Scan(Op):
    """A counted loop.  Step `i` reads row `i` of the streams; with `reverse`, the last step runs
    first.
    """

    __slots__ = ("num_carries",)

    num_carries: int
    """How many operands, body parameters and results are carries; they come first."""

    @property
    def body(self) -> Region:
        return self.regions[0]

    @property
    def length(self) -> int:
        return length_of(self)

    @property
    def has_length(self) -> bool:
        """Whether `length` is a number: that of a symbol cannot be read (`jax.export`)."""
        return has_length(self)

    @property
    def reverse(self) -> bool:
        return reverse_of(self)

    @property
    def carries(self) -> tuple[Carry, ...]:
        n, body = self.num_carries, self.body
        return tuple(
            map(Carry, self.operands[:n], body.params[:n], body.outputs[:n], self.results[:n])
        )

    @property
    def streams(self) -> tuple[Stream, ...]:
        n = self.num_carries
        return tuple(map(Stream, self.operands[n:], self.body.params[n:]))

    @property
    def stacks(self) -> tuple[Stack, ...]:
        n = self.num_carries
        return tuple(map(Stack, self.body.outputs[n:], self.results[n:]))

    def carry_of(self, param: Value) -> Carry | None:
        """The carry whose parameter or result this is."""
        index = self._slot(param, self.body)
        index = self._slot(param, self) if index is None else index
        if index is None or index >= self.num_carries:
            return None
        values = self.operands, self.body.params, self.body.outputs, self.results
        return Carry(*(each[index] for each in values))

    def stream_of(self, param: Value) -> Stream | None:
        """The stream whose parameter this is."""
        index = self._slot(param, self.body)
        if index is None or index < self.num_carries:
            return None
        return Stream(self.operands[index], param)

    def stack_of(self, result: Value) -> Stack | None:
        """The stack whose result this is."""
        index = self._slot(result, self)
        if index is None or index < self.num_carries:
            return None
        return Stack(self.body.outputs[index], result)

    def _slot(self, value: Value, owner: Op | Region) -> int | None:
        return owner.places.get(value) if value.owner is owner else None


class While(Op):
    """``while predicate(carries): carries = body(carries)``; both regions have the carries as
    parameters.
    """

    __slots__ = ("rows",)

    rows: int | None
    """Of how many steps carries are kept where it is differentiated backwards; None if it cannot
    be."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rows = None

    @property
    def predicate(self) -> Region:
        return self.regions[0]

    @property
    def body(self) -> Region:
        return self.regions[1]

    @property
    def carries(self) -> tuple[Carry, ...]:
        return tuple(map(Carry, self.operands, self.body.params, self.body.outputs, self.results))


class Outcome(NamedTuple):
    """One result of a cond with the value each branch gives it."""

    result: Value
    values: tuple[Value, ...]


class Cond(Op):
    """``branches[selector]``.  With two branches the selector is a bool: branch 0 is taken when
    it is false.
    """

    __slots__ = ()

    @property
    def selector(self) -> Value:
        return self.operands[0]

    @property
    def branches(self) -> tuple[Region, ...]:
        return self.regions

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        per_branch = zip(*(branch.outputs for branch in self.regions), strict=True)
        return tuple(map(Outcome, self.results, per_branch))

    def taken(self, selector: Any) -> int:
        """The number of the branch for a selector; for one out of range XLA takes the last."""
        number, last = int(selector), len(self.regions) - 1
        return number if 0 <= number <= last else last

    def chooses_with(self, other: Cond) -> bool:
        """Whether this cond and another one always take branches of the same number.

        Two conds on one selector may have different numbers of branches.
        """
        return self.selector is other.selector and len(self.branches) == len(other.branches)

    def defines(self, value: Value) -> bool:
        """Whether a value is defined in a branch."""
        return any(branch.defines(value) for branch in self.branches)


class Remat(Op):
    """``jax.checkpoint``: its values are recomputed in a transpose; nothing inside is merged
    with its outside.
    """

    __slots__ = ()

    @property
    def body(self) -> Region:
        return self.regions[0]


class Call(Op):
    """A boundary that is kept: a `jit` with shardings, `shard_map`, `closed_call`.  Its region
    is isolated.
    """

    __slots__ = ()

    @property
    def body(self) -> Region:
        return self.regions[0]


@dataclass(eq=False, slots=True)
class Graph:
    """A whole program: one isolated region, and what is needed to make a jaxpr of it again."""

    body: Region
    name: str = "fn"
    debug_info: Any = None
    phase: Phase = "differentiable"
    cotangents: tuple[Value, ...] = ()
    """Of a joint program, the inputs that its backward half starts from."""
    divided: bool = False
    """Whether XLA may divide its arrays over devices, without a word in their types."""
    opened: bool = False
    """Whether calls that the first phase leaves alone (custom derivatives) were inlined."""
    donated: Aliasing | None = None
    """Which inputs become which outputs, where a caller gives some up."""
    given_up: frozenset[int] = frozenset()
    """The inputs that the caller donates when the program is compiled, as far as that is known."""
    is_backward: bool = False
    """Whether it is the second half of a gradient that is compiled with the first."""
    facts: dict[Any, Any] = field(default_factory=dict, repr=False)
    """What analyses have found out, until the next edit (see `jaxpr_opt.ir.facts`)."""

    def __post_init__(self) -> None:
        self.body.owner = self

    def walk(self) -> Iterator[Op]:
        """Every op, parents first, in program order."""
        return self.body.walk()

    @property
    def has_gradient(self) -> bool:
        """Whether the program computes a gradient: whether JAX has transposed part of it."""
        return any(op.source.transposed for op in self.walk())

    @property
    def inputs(self) -> tuple[Value, ...]:
        return self.body.params

    @property
    def outputs(self) -> tuple[Value, ...]:
        return self.body.outputs


def aval_bytes(aval: Any) -> int:
    """Bytes of one array of this type; 0 for tokens and the like, and for symbolic shapes."""
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
    return 0 if shape is None or dtype is None else _array_bytes(shape, dtype)


@functools.lru_cache(maxsize=4096)
def _array_bytes(shape: tuple[Any, ...], dtype: Any) -> int:
    return dtypes.nbytes(shape, dtype) if is_sized(shape) else 0


def is_sized(shape: Iterable[Any]) -> bool:
    """Whether all sizes of a shape are numbers, none a symbol (`jax.export`)."""
    return all(isinstance(n, int) for n in shape)
