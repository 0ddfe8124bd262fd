"""Mutants that no test can kill, as what is computed stays right: where, what, and why.

A condition that only saves time, that others imply, or without which more would be recognised,
cites its number like any other: who reads the pass sees what it is part of.  ``make mutants`` lists
these mutants by themselves.
"""

from __future__ import annotations

_FENCES = "a fence is the identity, and so is one too many"
_LESS = "less is recognised"
_SKIPS = "`alone` and `taken` are both there, or neither"
_EXACT = "an exact conversion comes back for other numbers, too; NaN that signals is made quiet"
_CASES = "the same selector: a case that the other select does not have is out of range"
_TYPES = "JAX gives all branches and the result one type"

HARMLESS: dict[str, dict[str, str]] = {
    "access._Where.access": {
        "without: and start": "of a start that is not known nothing is uniform",
    },
    "buffers.buffer": {
        "without: or use.position != 0": "what is written elsewhere as a whole is no few rows",
    },
    "carry_mapped_rows.CarryMappedRows.find": {
        "always: is_sized((op.length,))": "where an answer depends on a symbol, a place is left",
    },
    "counterparts.counterparts": {
        "without: and _is_small(op)": "saves time: large values would be made on both sides",
    },
    "cuts.cut": {
        "never: not chosen or any((not _can_store(v, scan) for v in stored))": (
            "a cut at a step's inputs stores its parameters only"
        ),
        "without: or not chosen": "where no residual goes, nothing is saved",
        "without: or any((not _can_store(v, scan) for v in stored))": (
            "a cut at a step's inputs stores its parameters only"
        ),
    },
    "cuts.residuals": {
        "never: alone is not None and taken is not None "
        "and _is_unspecified(alone.skipped[stack.value])": _LESS,
        "without: and alone is not None": _SKIPS,
        "without: and taken is not None": _SKIPS,
    },
    "discarded_rows._Walk._results": {
        "without: or op.regions": _LESS,
    },
    "drop_dummy_residuals._dummy": {
        "always: value.aval == result.aval": _TYPES,
    },
    "exit_loop_early.ExitLoopEarly._unread": {
        "never: isinstance(row, SkippedRow) and row.value is None": "rows are unspecified anyway",
    },
    "factors._factors": {
        "without: or value.op is None": "what a step makes has an op: inner loops are left out",
    },
    "fences.why_no_fence": {
        "without: and fence() == 'division'": _LESS,
    },
    "fuse_branches._crosses_over": {
        "without: and first not in backward": _LESS,
        "without: and second in backward": _LESS,
    },
    "isolate_dropped_steps.IsolateDroppedSteps.unspecified": {
        "left out: IsolateDroppedSteps.unspecified": (
            "only a gradient in two halves has cotangents, and a pass runs on both when JAX is done"
        ),
    },
    "join_selected_parts._is_read_around": {
        "always: reads_window(user, value)": "what is still read is still made",
        "all, not only if write.op.result is value": _LESS,
        "without: or is_same_window(user, write.op)": _LESS,
    },
    "mapped_carries._has_rows": {
        "without: or axis is None": "no axis of what is repeated becomes none",
    },
    "mapped_carries.written_rows": {
        "without: and place is not None": "of a whole number limits are known",
    },
    "mapped_carries._writes": {
        "without: or op.region is not scan.body": "outside is no write to the carry",
        "without: or len(writes) > limits.WRITES_IN_A_ROW": "saves time",
    },
    "moves.keeps_order": {
        "never: op.name == 'broadcast_in_dim'": _LESS,
        "never: op.name == 'squeeze'": _LESS,
        "without: and len(op.operands) == 1": "other operands are sizes that only the run knows",
    },
    "multiply_repeated_rows.MultiplyRepeatedRows.find": {
        "without: or not op.result.uses": "what nobody reads is removed",
    },
    "multiply_repeated_rows.MultiplyRepeatedRows.refuse": {
        "without: and is_added": _LESS,
    },
    "repeated_parts._read_part": {
        "without: or read is None": "what no op makes is read of no table",
        "without: or part.repeated": "rows that are the same are multiplied once, read or not",
    },
    "row_views.PlaceInArray.after": {
        "without: and op.name == 'dynamic_update_slice'": "no other op writes its second operand",
    },
    "scatter_chains._repeated": {
        "without: and inner.links": "to a carry that stays as it is, nothing is added",
    },
    "read_after_writing._reads": {
        "never: version not in body.terminator.operands": _FENCES,
        "without: and not _is_of_data(read, body)": _FENCES,
    },
    "read_before_overwriting.ReadBeforeOverwriting._reads": {
        "always: unordered or whole": _FENCES,
    },
    "read_before_overwriting.ReadBeforeOverwriting.refuse": {
        "without: and fence() == 'division'": _LESS,
    },
    "resolve_known_predicates.ResolveKnownPredicates.find": {
        "without: and value.aval == result.aval": _TYPES,
    },
    "resolve_known_predicates._agreed": {
        "never: cond.defines(first)": "what one branch defines, another one cannot yield",
    },
    "resolve_known_predicates._known_reads": {
        "without: and use not in seen": "the same number is put in the same place twice",
    },
    "algebra.added_apart": {
        "without: or len(left) != 2": _CASES,
        "without: or len(right) != 2": _CASES,
    },
    "algebra.converted_back": {
        "never: mid.dtype == op.result.dtype": _LESS,
        "without: or not (_is_integral(source) and _is_integral(mid))": _EXACT,
        "without: and _is_integral(source)": _EXACT,
        "without: and _is_integral(mid)": _EXACT,
    },
    "algebra.involution": {
        "without: and inner.params == op.params": "of remove-idle-moves; these have no parameters",
    },
    "stack_carried_updates._is_constant": {
        "without: and extent.start is not None": "all accesses are located",
    },
    "branch_writes.BranchWrites.why_not_after": {
        "without: and None in self.writes": _LESS,
    },
    "branch_writes.branch_writes": {
        "without: and outcome.result.uses": "what nobody reads is removed",
    },
    "read_ends._read_back": {
        "without: or use.position < loop.num_carries": (
            "cotangents that begin as rows of a stack do not stay as they began"
        ),
    },
    "replayed_steps.replayed_cut": {
        "without: or not found": "saves time: a cut of no residuals is none",
    },
    "repeated_ops._long_rows": {
        "without: or op.is_terminator": "a terminator has no results that could be made again",
    },
    "register_stacks._known": {
        "without: or value.op.name != 'broadcast_in_dim'": "what has one operand spreads it, too",
        "without: or len(value.op.operands) > 1": "more operands are those of a dynamic shape",
    },
    "rings.ring": {
        "without: or carry.is_invariant": "what stays whole has not moved",
    },
    "shift_registers._shifts": {
        "without: or carry.is_invariant": "what stays whole is one piece",
    },
    "selected_cases.case_within": {
        "without: and known is not None": "of a selector at least the limits of its type are known",
    },
    "summed_rows._summed": {
        "without: and known": "what is the same at all places has no rows in order",
    },
    "skipped_steps.select_kept": {
        "without: or plain.keeps(carry)": "what is selected is kept anyway",
        "always: not isinstance(plain[stack.value], Splat)": "the number is stacked anyway",
    },
    "stack_consumers._hop": {
        "without: or op.result.shape[lead:] != row": "what is read in the end must be a row, too",
    },
    "taken_apart._written": {
        "always: found.kind == 'add' or not written.contains(box)": (
            "saves time: what is overwritten would be computed, and not read"
        ),
    },
    "taken_apart.is_version": {
        "without: and op.result.shape != ()": "a scalar is computed again as it is",
    },
    "taken_apart.is_in_windows": {
        "without: and use.position == 0": "a read at a known place does not need its index either",
    },
    "value_numbering.Numbering.of": {
        "without: or self.leader.get(value)": _LESS,
    },
    "versions._history": {
        "without: or op.region is not scan.body": "outside of the step nothing is the carry",
    },
    "versions._is_read": {
        "without: and found.kind == 'read'": "what writes a window is a view anyway",
    },
    "versions._makes_view": {
        "never: _is_write(op)": _LESS,
    },
    "versions._view": {
        "without: or not scan.body.contains(op.region)": "outside are no versions",
    },
    "write_where_masked.WriteWhereMasked.find": {
        "without: or mask is None": "it has no routes then",
        "without: and users": "rows that nobody reads may go",
    },
    "written_masks._compared": {
        "without: and write.name == 'scatter'": "other writes have no function of their own",
    },
    "written_masks._is": {
        "never: values is None": "of a whole number at least the limits of its type are known",
    },
}
"""By module and function: the mutant, and why it does no harm."""
