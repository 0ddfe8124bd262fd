"""Prices by which rewrites pay that are sound: tests show what passes do on small programs."""

import dataclasses

from jaxpr_opt.cost.devices import CPU
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.passes.sparse.accumulate_sparse_cotangents import AccumulateSparseCotangents

FREE = dataclasses.replace(
    CPU,
    step=0.0,
    fused_step=0.0,
    line=0,
    predicate=0.0,
    question=0.0,
    tested=0.0,
    registers=0,
    vector=1.0,
    starts_each=False,
    makes_functions=False,
)
"""Steps take no time, so that whatever a step moves takes longer; two scalars are many."""


class Sparse(CostModel):
    """Windows are small beside any array."""

    __slots__ = ()

    def is_sparse(self, windows, array):
        return True


class Replaying(CostModel):
    """A step is replayed however much longer that takes than its step back."""

    __slots__ = ()

    def is_worth_replaying(self, again, back):
        return True


class Eager(Sparse, Replaying):
    """What passes ask is answered so that they fire."""

    __slots__ = ()

    def run(self, items):
        return 0.0

    def is_better_stacked(self, nbytes):
        return False

    def is_less_moved(self, ops, nbytes, than_ops, than_nbytes):
        return nbytes < than_nbytes

    def is_less_as_one_product(self, products, masks):
        return True

    def is_less_without_copies(self, copies, turned=0, moved=0, made=0):
        return copies > 0

    def is_picked(self, rows, ops, looked, unmade):
        return True

    def may_be_copied(self, part, array, spared):
        return True

    def is_worth_handing_on(self, values, again):
        return True

    def is_worth_ranges(self, scan, arrays):
        return True

    def steps_for_ranges(self, scan, arrays):
        return 1

    def is_worth_one_function(self, loop):
        return True

    def is_worth_writing_apart(self, array, region):
        return True

    def is_worth_mapping_once(self, values, ops, again, part, *, moves):
        return True

    def is_less_by_tables(self, ops, share, unread, made, marked):
        return True

    def is_less_in_parts(self, product, multiplied, results, summed, unmade):
        return multiplied < 1

    def is_less_read(self, product, part, share, unread, marked):
        return True

    def is_less_once(self, op, rows):
        return not self.is_made_where_read(op)

    def is_sorted_longer(self, length, rows):
        return True


EAGER = Eager(FREE)


class AddedElsewhere(AccumulateSparseCotangents):
    """Adds up elsewhere however small the array."""

    def refuse(self, match):
        with using(Sparse(FREE)):
            return super().refuse(match)
