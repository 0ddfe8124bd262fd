"""The interface of a pass.

A pass is three functions: `find` yields the places where it might apply, `refuse` says why a place
must stay unchanged (or None), `rewrite` changes it. `find` and `refuse` are pure. The linter and
`explain` call the same two, so they always agree with what the optimiser does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, get_args

from jaxpr_opt.bridge import compat
from jaxpr_opt.insight.journal import Waste
from jaxpr_opt.ir.graph import Op, Phase, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.memory.planner import Trade

PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """A place where a pass might apply: the op it is anchored at, and what would happen, in
    words.

    The other fields serve reports.  A subclass has what its pass knows of the place, and may narrow
    the class of the op: ``op: Scan``.
    """

    op: Op
    says: str
    at: Op | None = field(default=None, kw_only=True)
    """The op whose source line reports show, if not `op`: a write, say, not the loop around it."""
    about: Value | None = field(default=None, kw_only=True)
    """The value whose type, size and number of copies reports show."""
    waste: Waste | None = field(default=None, kw_only=True)
    """What XLA would otherwise do with the whole value in each step of a loop, if known; None if
    XLA does the rewrite, too, and it only helps other passes to match."""
    is_refused: bool = field(default=False, kw_only=True)
    """Whether `refuse` always refuses it: such a match is found only for reports."""
    is_cleanup: bool = field(default=False, kw_only=True)
    """Whether it is a clean-up only: alone it is no reason to touch a program."""
    trades: Sequence[Trade] = field(default=(), kw_only=True)
    """For straight-line code: the ways to trade seconds for memory there, the fastest first."""


M = TypeVar("M", bound=Match)
"""The class of the matches of a pass, which may add fields to `Match`."""


class After(NamedTuple):
    """That a pass is tried after another, and why."""

    name: str
    why: str


class Pass(Generic[M]):
    """Base class of passes, with the class of their matches: ``class Mine(Pass[MyMatch])``.
    Subclasses are frozen dataclasses, their options are fields.

    Contract: a verified graph in, a verified graph out, computing the same values bit for bit when
    evaluated equation by equation (up to the sign of zero); up to rounding if it reorders sums.
    """

    name: ClassVar[str]
    """kebab-case, the file's name."""
    phase: ClassVar[Phase] = "differentiable"
    """From which phase on it runs."""
    anchors: ClassVar[tuple[type[Op], ...]] = (Op,)
    """`find` is asked about ops of these classes only,"""
    primitives: ClassVar[frozenset[str] | None] = None
    """and of these names, if not None."""
    needs: ClassVar[frozenset[str] | None] = None
    """It finds nothing in a program without any op of these names, if not None."""
    rows: ClassVar[bool] = False
    """Whether it finds nothing in straight-line code in which no truth value chooses a row."""
    at_once: ClassVar[bool] = False
    """Whether one rewrite does all there is to do at an op; `find` does not see the op again."""
    cleanup: ClassVar[bool] = False
    """Whether it only cleans up after others: alone it is no reason to touch a program."""
    after: ClassVar[tuple[After, ...]] = ()
    """Passes of the same stage that it must be tried after; it may change places with others."""

    whole_arrays: ClassVar[bool] = False
    """Whether it runs only where each device holds whole arrays.  Such a pass makes a program read
    or write windows of arrays, or read them in other loops; XLA gathers an array that is divided
    over devices to read a window of it, and for each of the loops."""

    unspecified: ClassVar[bool] = False
    """Whether it leaves values unspecified that are read, though nothing comes of them.  Such a
    pass does not run on what JAX is about to differentiate: a derivative might multiply zero by
    them."""

    thrifty: ClassVar[bool] = False
    """Whether it also runs where no budget is given, to take less memory in hardly more time."""

    @property
    def reassociates(self) -> bool:
        """Whether it changes the order of sums, so that results are rounded otherwise.  Such a pass
        runs only under `optimize(reassociate=True)`, or where it is named.
        """
        return False

    @property
    def rounds(self) -> bool:
        """Whether results may be rounded otherwise: it changes the order of sums, or the shape of
        products, for which a library adds up in another order.
        """
        return self.reassociates

    def looks_at(self, names: Collection[str]) -> bool:
        """Whether it may find something in straight-line code of ops of these names."""
        asked = Op in self.anchors and (
            self.primitives is None or not self.primitives.isdisjoint(names)
        )
        if self.rows and compat.ROWS not in names:
            return False
        return asked and (self.needs is None or not self.needs.isdisjoint(names))

    def find(self, op: Any) -> Iterator[M]:
        """Matches anchored at `op`, which is of one of the classes in `anchors`."""
        raise NotImplementedError(f"{type(self).__name__} does not define find")

    def refuse(self, match: M) -> str | None:  # noqa: ARG002
        """Why the match must stay as it is, naming the value at fault; None if it may be rewritten.

        By default every match may be.
        """
        return None

    def rewrite(self, match: M, rw: Rewriter) -> None:
        """Apply the match, which `refuse` has just let pass."""
        raise NotImplementedError(f"{type(self).__name__} does not define rewrite")


class PassError(Exception):
    """A pass broke: which one, and after which others."""

    def __init__(self, name: str, before: Sequence[str], cause: BaseException) -> None:
        after = f" (after {', '.join(before)})" if before else ""
        super().__init__(f"pass {name}{after} failed: {type(cause).__name__}: {cause}")
        self.name = name
