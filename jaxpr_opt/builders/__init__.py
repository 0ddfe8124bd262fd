"""Code that passes emit.

==================================================  ========================================
reads and writes of windows
`narrow_reads`, `coinciding`, `selected_writes`     a window of a result, of another's window
`moved_reads`                                       windows of what is moved, of its operands
`array_windows`                                     windows in place of arrays
`read_rows`, `last_rows`, `picked_rows`             the rows of results that are read, of stacks
`one_hot_rows`                                      the row that a mask chooses
`selected_ends`                                     few elements of what would be sorted
`picked_sums`                                       rows that one-hot arrays pick, or add up
`picked_windows`                                    windows in zeros where one-hot arrays are one
`step_rows`                                         the row of a step, in place of a stream
`same_op`                                           an op again, on other operands
`branches_in_turn`                                  branches as loops of at most one step
`branch_writes`                                     writes of branches, after their cond
`whole_writes`                                      writes to windows, as writes to the array
`window_by_window`                                  writes of several windows, one by one
`tiled_windows`                                     a window as others that tile it
`summed_windows`, `repeated_rows`                   additions in place, and of equal rows
`repeated_parts`                                    products by parts of a factor
`added_rows`                                        what is made of rows that are added to zeros
`shared_tables`, `shared_factors`,                  one table, matrix, kernel or result for all rows
`shared_kernels`, `shared_results`
`batch_sums`, `sums_in_steps`                       sums over a batch, at once or in steps
`reduction_privatization`, `sums_in_slots`,         sums in another place, in the old order
`sums_in_an_array`, `carried_scratch`
`descent_rows`, `state_rows`                        steps of an optimizer on some rows
`reduced_rows`                                      reductions of zeros with rows in them
`at_most_once`                                      a step that is taken once, or not at all
loops
`mapped_carries`                                    a loop that carries what it makes of rows
`narrow_carry`, `sliding_rows`, `ring_rows`,        a loop that carries less of an array
`traced_rows`, `register_windows`
`merged_loop`, `split_loop`, `pieces`               one loop of two, two of one
`steps_at_once`                                     several steps in one
`early_exit`, `refilled_stacks`                     a loop that stops early, and what it stacks then
`chosen_branches`                                   a branch for each case of a choice
`skipped_steps`, `any_row`, `taken_steps`           steps that skip; is any row taken; how many are
`unless_finite`                                     a loop that stops if what it skips is finite
`packed_step`                                       a step with vectors
`outer_values`, `step_numbers`                      values that are the same in each step; numbers
`flag_rows`                                         truth values in place of zeros and ones
`bits`                                              integers in place of numbers of bfloat16
what loops store
`mapped_reads`                                      what is made of all rows of tables, then read
`summed_rows`                                       rows that are added up, and then mapped
`mapped_rows`, `made_rows`                          of the rows of a stack; the rows of a stream
`residual_transfer`, `recomputed_residuals`         stacks for other loops, and what they recompute
`inner_replay`                                      a loop of a step, run again
`undone_writes`                                     writes that a loop back undoes
order
`fences`                                            reads before writes
==================================================  ========================================
"""
