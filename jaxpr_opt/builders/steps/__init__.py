"""Loops that skip, merge or split steps, or stop early.

=================  ============================================
`skipped_steps`    steps that skip
`any_row`          whether any row is taken
`taken_steps`      how many steps are taken
`early_exit`       a loop that stops early
`stopping_loop`    its predicate, and one step of it
`refilled_stacks`  what it stacks then
`unless_finite`    a loop that stops if what it skips is finite
`chosen_branches`  a branch for each case of a choice
`flag_rows`        truth values in place of zeros and ones
`merged_loop`      one loop of two
`split_loop`       two loops of one
`pieces`           the steps of a loop in several loops
`step_rows`        the row of a step, in place of a stream
=================  ============================================
"""
