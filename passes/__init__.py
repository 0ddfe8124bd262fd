"""The library of passes: folders by question, and four that the project is known for,
`drop-dummy-residuals`, `push-remat-into-branches`, `stack-carried-updates`, `mark-donated-buffers`.
Each stage runs to a fixpoint; in it the order matters only where a pass says so (`Pass.after`).
"""

from __future__ import annotations

from jaxpr_opt.passes.batches.multiply_repeated_rows import MultiplyRepeatedRows
from jaxpr_opt.passes.batches.share_batched_factors import ShareBatchedFactors
from jaxpr_opt.passes.batches.share_batched_results import ShareBatchedResults
from jaxpr_opt.passes.batches.share_batched_tables import ShareBatchedTables
from jaxpr_opt.passes.batches.sum_batches_at_once import SumBatchesAtOnce
from jaxpr_opt.passes.batches.sum_in_steps import SumInSteps
from jaxpr_opt.passes.batches.write_rows_together import WriteRowsTogether
from jaxpr_opt.passes.carried.carry_as_written import CarryAsWritten
from jaxpr_opt.passes.carried.carry_last_rows import CarryLastRows
from jaxpr_opt.passes.carried.carry_mapped_rows import CarryMappedRows
from jaxpr_opt.passes.carried.carry_picked_rows import CarryPickedRows
from jaxpr_opt.passes.carried.narrow_carried_arrays import NarrowCarriedArrays
from jaxpr_opt.passes.carried.read_before_moving import ReadBeforeMoving
from jaxpr_opt.passes.carried.shift_in_place import ShiftInPlace
from jaxpr_opt.passes.carried.trace_back_rows import TraceBackRows
from jaxpr_opt.passes.codegen.compile_small_loops import CompileSmallLoops
from jaxpr_opt.passes.codegen.concatenate_padded_windows import ConcatenatePaddedWindows
from jaxpr_opt.passes.codegen.make_factors_once import MakeFactorsOnce
from jaxpr_opt.passes.codegen.multiply_along_rows import MultiplyAlongRows
from jaxpr_opt.passes.codegen.pack_scalars import PackScalars
from jaxpr_opt.passes.codegen.select_padded_numbers import SelectPaddedNumbers
from jaxpr_opt.passes.drop_dummy_residuals import DropDummyResiduals
from jaxpr_opt.passes.in_place.add_in_place import AddInPlace
from jaxpr_opt.passes.in_place.carry_bits import CarryBits
from jaxpr_opt.passes.in_place.read_after_writing import ReadAfterWriting
from jaxpr_opt.passes.in_place.read_around_writes import ReadAroundWrites
from jaxpr_opt.passes.in_place.read_before_overwriting import ReadBeforeOverwriting
from jaxpr_opt.passes.in_place.scan_in_place import ScanInPlace
from jaxpr_opt.passes.in_place.unroll_swapped_carries import UnrollSwappedCarries
from jaxpr_opt.passes.in_place.update_rows import UpdateRows
from jaxpr_opt.passes.in_place.update_states import UpdateStates
from jaxpr_opt.passes.in_place.write_apart import WriteApart
from jaxpr_opt.passes.in_place.write_in_branches import WriteInBranches
from jaxpr_opt.passes.laws.carry_truth_values import CarryTruthValues
from jaxpr_opt.passes.laws.eliminate_dead_code import EliminateDeadCode
from jaxpr_opt.passes.laws.fold_constants import FoldConstants
from jaxpr_opt.passes.laws.merge_common_subexpressions import MergeCommonSubexpressions
from jaxpr_opt.passes.laws.open_checkpoints import OpenCheckpoints
from jaxpr_opt.passes.laws.remove_idle_moves import RemoveIdleMoves
from jaxpr_opt.passes.laws.resolve_known_predicates import ResolveKnownPredicates
from jaxpr_opt.passes.laws.simplify import Simplify
from jaxpr_opt.passes.mark_donated_buffers import MarkDonatedBuffers
from jaxpr_opt.passes.masks.add_one_hot_rows import AddOneHotRows
from jaxpr_opt.passes.masks.join_selected_parts import JoinSelectedParts
from jaxpr_opt.passes.masks.read_one_hot_rows import ReadOneHotRows
from jaxpr_opt.passes.masks.recognize_one_hot import RecognizeOneHot
from jaxpr_opt.passes.masks.sink_select_into_update import SinkSelectIntoUpdate
from jaxpr_opt.passes.masks.write_where_masked import WriteWhereMasked
from jaxpr_opt.passes.push_remat_into_branches import PushRematIntoBranches
from jaxpr_opt.passes.reassociating.add_scaled_rows import AddScaledRows
from jaxpr_opt.passes.reassociating.join_nested_sums import JoinNestedSums
from jaxpr_opt.passes.reassociating.map_sums_once import MapSumsOnce
from jaxpr_opt.passes.residuals.forward_known_stacks import ForwardKnownStacks
from jaxpr_opt.passes.residuals.hoist_invariant_residuals import HoistInvariantResiduals
from jaxpr_opt.passes.residuals.join_branch_results import JoinBranchResults
from jaxpr_opt.passes.residuals.narrow_residuals import NarrowResiduals
from jaxpr_opt.passes.residuals.pack_truth_values import PackTruthValues
from jaxpr_opt.passes.residuals.recompute_segments import RecomputeSegments
from jaxpr_opt.passes.residuals.replay_inner_loops import ReplayInnerLoops
from jaxpr_opt.passes.residuals.replay_segments import ReplaySegments
from jaxpr_opt.passes.residuals.replay_steps import ReplaySteps
from jaxpr_opt.passes.residuals.share_shifted_stacks import ShareShiftedStacks
from jaxpr_opt.passes.residuals.split_branch_results import SplitBranchResults
from jaxpr_opt.passes.residuals.stack_choices import StackChoices
from jaxpr_opt.passes.residuals.stack_entering_rows import StackEnteringRows
from jaxpr_opt.passes.residuals.stack_narrow_integers import StackNarrowIntegers
from jaxpr_opt.passes.residuals.stack_needed_rows import StackNeededRows
from jaxpr_opt.passes.residuals.stack_read_windows import StackReadWindows
from jaxpr_opt.passes.residuals.undo_carried_writes import UndoCarriedWrites
from jaxpr_opt.passes.rows.add_before_mapping import AddBeforeMapping
from jaxpr_opt.passes.rows.add_in_runs import AddInRuns
from jaxpr_opt.passes.rows.compute_added_rows import ComputeAddedRows
from jaxpr_opt.passes.rows.compute_read_rows import ComputeReadRows
from jaxpr_opt.passes.rows.compute_shifted_rows import ComputeShiftedRows
from jaxpr_opt.passes.rows.make_streamed_rows import MakeStreamedRows
from jaxpr_opt.passes.rows.map_before_reading import MapBeforeReading
from jaxpr_opt.passes.rows.map_stacked_rows import MapStackedRows
from jaxpr_opt.passes.rows.reduce_stacked_rows import ReduceStackedRows
from jaxpr_opt.passes.rows.take_top_k import TakeTopK
from jaxpr_opt.passes.sparse.accumulate_sparse_cotangents import AccumulateSparseCotangents
from jaxpr_opt.passes.sparse.add_in_branches import AddInBranches
from jaxpr_opt.passes.sparse.map_before_writing import MapBeforeWriting
from jaxpr_opt.passes.sparse.reduce_added_rows import ReduceAddedRows
from jaxpr_opt.passes.sparse.scatter_padded_windows import ScatterPaddedWindows
from jaxpr_opt.passes.stack_carried_updates import StackCarriedUpdates
from jaxpr_opt.passes.steps.ask_about_choices import AskAboutChoices
from jaxpr_opt.passes.steps.ask_about_factors import AskAboutFactors
from jaxpr_opt.passes.steps.begin_at_cotangents import BeginAtCotangents
from jaxpr_opt.passes.steps.collapse_loops import CollapseLoops
from jaxpr_opt.passes.steps.count_steps import CountSteps
from jaxpr_opt.passes.steps.end_at_read_rows import EndAtReadRows
from jaxpr_opt.passes.steps.exit_loop_early import ExitLoopEarly
from jaxpr_opt.passes.steps.fuse_branches import FuseBranches
from jaxpr_opt.passes.steps.isolate_dropped_steps import IsolateDroppedSteps
from jaxpr_opt.passes.steps.isolate_selected_work import IsolateSelectedWork
from jaxpr_opt.passes.steps.isolate_skipped_steps import IsolateSkippedSteps
from jaxpr_opt.passes.steps.remember_the_end import RememberTheEnd
from jaxpr_opt.passes.steps.rotate_loops import RotateLoops
from jaxpr_opt.passes.steps.skip_untaken_branches import SkipUntakenBranches
from jaxpr_opt.passes.steps.split_flat_loops import SplitFlatLoops
from jaxpr_opt.passes.steps.split_phases import SplitPhases
from jaxpr_opt.passes.windows.join_consecutive_rows import JoinConsecutiveRows
from jaxpr_opt.passes.windows.narrow_reads import NarrowReads
from jaxpr_opt.passes.windows.slice_known_windows import SliceKnownWindows
from jaxpr_opt.passes.windows.slice_split_arrays import SliceSplitArrays
from jaxpr_opt.passes.windows.take_arrays_apart import TakeArraysApart
from jaxpr_opt.passes.writes.expand_combining_scatters import ExpandCombiningScatters
from jaxpr_opt.passes.writes.forward_repeated_rows import ForwardRepeatedRows
from jaxpr_opt.passes.writes.forward_written_windows import ForwardWrittenWindows
from jaxpr_opt.passes.writes.put_parts_back import PutPartsBack
from jaxpr_opt.passes.writes.write_after_branches import WriteAfterBranches
from jaxpr_opt.passes.writes.write_after_loops import WriteAfterLoops
from jaxpr_opt.passes.writes.write_to_whole_arrays import WriteToWholeArrays

CLEANUP = (
    OpenCheckpoints(), ResolveKnownPredicates(), CarryTruthValues(), Simplify(), FoldConstants(),
    RemoveIdleMoves(), EliminateDeadCode(), MergeCommonSubexpressions(),
)  # fmt: skip
RESIDUALS = (*CLEANUP, HoistInvariantResiduals(), DropDummyResiduals())
WINDOWS = (
    TakeArraysApart(), SliceSplitArrays(), SplitFlatLoops(), ShareBatchedTables(),
    ShareBatchedFactors(), ShareBatchedResults(), SumBatchesAtOnce(), SumInSteps(),
    MultiplyRepeatedRows(), JoinConsecutiveRows(), ForwardKnownStacks(), RecognizeOneHot(),
    ReadOneHotRows(), AddOneHotRows(), WriteWhereMasked(), ForwardRepeatedRows(),
    ExpandCombiningScatters(), ForwardWrittenWindows(), SinkSelectIntoUpdate(), JoinSelectedParts(),
    AddInBranches(), WriteAfterBranches(), WriteAfterLoops(), PutPartsBack(), WriteToWholeArrays(),
    WriteRowsTogether(), CarryAsWritten(), NarrowReads(), ComputeReadRows(), ReadBeforeMoving(),
    MapBeforeReading(), AddBeforeMapping(), CarryMappedRows(), TakeTopK(), CarryLastRows(),
    CarryPickedRows(), ComputeShiftedRows(), MakeStreamedRows(), MapBeforeWriting(),
    ComputeAddedRows(), AccumulateSparseCotangents(), NarrowCarriedArrays(), TraceBackRows(),
    ShiftInPlace(), StackCarriedUpdates(), SliceKnownWindows(),
)  # fmt: skip
SUPPLIERS = (
    StackChoices(), SplitBranchResults(), StackReadWindows(), NarrowResiduals(),
    ShareShiftedStacks(), StackEnteringRows(), UndoCarriedWrites(),
)  # fmt: skip
STACKS = (StackNeededRows(), MapStackedRows(), ReduceStackedRows(), MakeStreamedRows())
FEWER_BYTES = (PackTruthValues(), StackNarrowIntegers())
ROWS = (ReduceAddedRows(), UpdateRows(), UpdateStates(), ScatterPaddedWindows(), AddInRuns())
CODEGEN = (SelectPaddedNumbers(), MakeFactorsOnce(), MultiplyAlongRows())
REASSOCIATING = (MapSumsOnce(), JoinNestedSums(), AddScaledRows(), ReduceAddedRows("all"))
"""What runs only under `optimize(reassociate=True)`."""

STAGES = (
    # Residuals that need not be: they leave a nest of loops level by level.  Phases of loops.
    CLEANUP,
    (HoistInvariantResiduals(), DropDummyResiduals(), SplitPhases()),
    REASSOCIATING,
    # What is made and used under one predicate; arrays that loops read and write by windows.
    (*RESIDUALS, *WINDOWS, FuseBranches(), PushRematIntoBranches()),
    # What skipped steps compute is no residual.
    (AskAboutChoices(), AskAboutFactors(), RememberTheEnd()),
    (IsolateSkippedSteps("scalars"),),
    # Loops of loops that stop for good become one loop, and their predicates one number.
    (CollapseLoops(), CountSteps()),
    # Only now can the masks of the transposed loops be compared, so that they merge too.
    (*RESIDUALS, CollapseLoops("upfront")),
    # Residuals of the one loop: free sources, the minimum cut, then what supplies its values.
    (*RESIDUALS, *WINDOWS, *SUPPLIERS),
    # The number of a step is known; then loops whose writes have been undone.
    (ReplayInnerLoops(), ReplaySteps(), ForwardKnownStacks()),
    (IsolateSkippedSteps("scalars", at_last=True),),
    (IsolateSkippedSteps(),),
    # What a part of a step computes for nobody; steps that a loop alone cannot tell to be skipped.
    (IsolateSelectedWork(),),
    (IsolateDroppedSteps(),),
    (ReplaySegments(), JoinBranchResults()),  # rows of skipped steps are unspecified by now
    (*STACKS, *FEWER_BYTES),  # no later pass looks at stacks
    (IsolateSelectedWork(at_last=True), SkipUntakenBranches()),
    # No later pass looks at single scalars, and gradients are to be of vectors.
    (PackScalars(),),
    RESIDUALS,  # after these nothing can differentiate any more
    (*ROWS, ExitLoopEarly(), EndAtReadRows(), BeginAtCotangents(), AddInPlace(), *CLEANUP),
    (ConcatenatePaddedWindows(), *CODEGEN, RotateLoops()),
    (UnrollSwappedCarries(), WriteInBranches(), ReadAroundWrites(), *CLEANUP),
    # Nothing moves any more.
    (ReadBeforeOverwriting(), ReadAfterWriting(), WriteApart()),
    # Last: it makes `while` loops, and only the steps of a scan have known numbers.
    (ScanInPlace(), EliminateDeadCode()),
    # Rows that loops write into other arrays are written in steps by now.
    (CarryBits(), EliminateDeadCode()),
    (CompileSmallLoops(),),
)

DEFAULT = tuple(stage for stage in STAGES if stage is not REASSOCIATING)
MEMORY = (
    ReplaySteps(), ReplaySegments(), NarrowResiduals(), StackEnteringRows(), RecomputeSegments(),
    *FEWER_BYTES, *CLEANUP,
)  # fmt: skip
"""What trades seconds for memory under `optimize(memory=...)`, before stages of the final phase."""

DONATION = (MarkDonatedBuffers(),)
"""What is asked where a caller gives up arguments: `optimize(donate=...)`, the lint, reports."""
