"""Windows that branches of a cond write into an array from outside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jax import lax

from jaxpr_opt.analysis.masks.selected_versions import is_reordered, is_stored_for_loop_back
from jaxpr_opt.analysis.values.constants import is_undefined, may_be_undefined, uniform
from jaxpr_opt.analysis.windows.access import Access, writes_in_a_row
from jaxpr_opt.bridge.parameters import has_numbers, mode_of
from jaxpr_opt.cost.limits import OPS_BESIDE_A_COND
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.dataflow import backward_slice, depending_on
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Cond, Op, Value
from jaxpr_opt.ir.traits import is_arithmetic


@dataclass(frozen=True, slots=True, eq=False)
class BranchWrites:
    """The first write of a window into one array, in each branch of a cond that writes."""

    cond: Cond
    result: Value
    """The result of the cond that these writes make, or they and others."""
    versions: tuple[Value, ...]
    """What each branch makes; in a branch that does not write, the array."""
    writes: tuple[Access | None, ...]
    yielded: tuple[tuple[Value, ...], ...]
    """What each branch makes by this write and more of them, one into the other."""

    @property
    def made(self) -> list[Access]:
        """The writes."""
        return [write for write in self.writes if write is not None]

    @property
    def are_of_zeros(self) -> bool:
        """Whether the array is zeros."""
        return bool(uniform(self.made[0].array) == 0)

    @property
    def unspecified(self) -> list[Value]:
        """The indices of the first window that are unspecified in branches that do not write."""
        # Condition 2 of write-after-branches.
        return [v for v in self.made[0].indices if None in self.writes and may_be_undefined(v)]

    @property
    def are_read(self) -> bool:
        """Whether anything but one yield reads what a branch makes."""
        users = [[use.op for use in write.op.result.uses] for write in self.made]
        return any(len(each) > 1 or not each[0].is_terminator for each in users)

    @property
    def are_stored(self) -> bool:
        """Whether a loop stores what they make, or a view of it, for a loop back."""
        return any(
            is_stored_for_loop_back(result)
            and not all(map(is_undefined, values))
            and all(
                is_undefined(value) or any(is_reordered(value, version) for version in versions)
                for value, versions in zip(values, self.yielded, strict=True)
            )
            for result, values in self.cond.outcomes
        )

    @property
    def says(self) -> str:
        """The rewrite in words."""
        numbers = [str(i) for i, write in enumerate(self.writes) if write is not None]
        branches = "branch" if len(numbers) == 1 else "each of branches"
        return f"what {branches} {', '.join(numbers)} writes is written after the cond"

    def places(self) -> list[Op]:
        """The ops of the branch that compute where the first window is."""
        return backward_slice(self.made[0].indices, lambda v: not self.cond.defines(v))

    def depend_on(self, other: BranchWrites) -> bool:
        """Whether what one of the other writes makes is needed for one of these."""
        return any(
            write is not None and write.op in depending_on([version], branch.ops)
            for branch, write, version in zip(
                self.cond.branches, self.writes, other.versions, strict=True
            )
            if branch.defines(version)
        )

    def why_not_after(self) -> str | None:
        """Why the writes cannot be one write after the cond."""
        first, *others = self.made
        # Condition 1 of write-after-branches.
        if not all(_are_alike(first, other) for other in others):
            return "branches write windows of different sizes, by different ops or types of indices"
        # Condition 2 of write-after-branches.
        if None in self.writes and not (first.is_located or _is_checked(first)):
            return "the index of the write may be out of range"
        # Condition 2 of write-after-branches.
        if None in self.writes and not all(map(may_be_early, self.places())):
            return "the index of the write is computed by more than arithmetic"
        # Condition 2 of write-after-branches.
        if self.unspecified and (not self.are_of_zeros or has_numbers(first.op)):
            return "the index of the write is unspecified where nothing is written"
        if cost_model().is_most(first.nbytes, first.array.nbytes):
            return "the window is most of the array"
        return None


def branch_writes(cond: Cond) -> Iterator[BranchWrites]:
    """The arrays that branches of a cond write into, where they are one array before."""
    for outcome in cond.outcomes:
        cases = zip(outcome.values, cond.branches, strict=True)
        # Condition 1 of write-after-branches.
        chains = [list(writes_in_a_row(*case, {"write"})) for case in cases]
        writes = tuple(chain[-1] if chain else None for chain in chains)
        pairs = list(zip(outcome.values, writes, strict=True))
        arrays = [value if write is None else write.array for value, write in pairs]
        is_one = len(set(arrays)) == 1 or all(uniform(array) == 0 for array in arrays)
        # Condition 1 of write-after-branches.
        if outcome.result.uses and any(writes) and is_one:
            versions = tuple(v if w is None else w.op.result for v, w in pairs)
            yielded = tuple(
                tuple(write.op.result for write in chain) or (value,)
                for value, chain in zip(outcome.values, chains, strict=True)
            )
            yield BranchWrites(cond, outcome.result, versions, writes, yielded)


def _is_checked(write: Access) -> bool:
    """Whether a write out of range is clamped or dropped."""
    return bool(mode_of(write.op) != lax.GatherScatterMode.PROMISE_IN_BOUNDS)


def may_be_early(op: Op) -> bool:
    """Whether an op of an index may run whatever branch is taken."""
    return is_arithmetic(op) or op.name == "concatenate"


def _are_alike(one: Access, other: Access) -> bool:
    """Whether two writes differ in what they write, and where, only."""
    same = one.op.name == other.op.name and one.op.params == other.op.params
    types = [[(v.shape, v.dtype) for v in each.indices] for each in (one, other)]
    return same and types[0] == types[1] and one.value.aval == other.value.aval


@remembered
def is_for(read: Op, cond: Cond) -> bool:
    """Whether what an op reads is seen to be needed for a cond only."""
    region = cond.region
    assert region is not None
    pending, seen = [read], {read}
    while pending and len(seen) <= OPS_BESIDE_A_COND:
        op = pending.pop()
        if op.region is not region or op.is_terminator or region.order(op) > region.order(cond):
            return False
        users = {user for result in op.results for user in result.users} - seen
        pending += (user for user in users if region.ancestor(user) is not cond)
        seen |= users
    return not pending
