"""Which steps of a loop do something.

=============================  =============================================================
`skips`                        the predicate under which a step does nothing
`predicates`                   truth values that say it, and when they are known
`lasting`                      whether a step that is skipped is followed by skipped steps only
`idle_choices`                 the choices with which a step does nothing
`assume`, `incremental_assume` what values become if a predicate is known
`computed`                     what a step computes if something is assumed of it
`splats`                       arrays of one number, and what ops make of them
`going_on`                     what skipped steps change in little time, or but once
`given_masks`                  arguments of floats that may be masks
`factors`                      what steps that do nothing multiply by zero
`skipped_rows`                 what a scan stacks in steps that do nothing
`read_ends`                    how far the rows of a stack are read
`zero_rows`                    cotangents of a loop that may begin with rows of zeros
`first_taken`                  whether the steps that are taken are the first ones
`masks`                        predicates that are true in the first steps only
`masked_rows`                  streams that a mask made zero where steps are skipped
`questions`                    how often a loop that skips asks whether to go on
`loop_nests`                   loops of loops that can be one loop
`flat_loops`                   loops over all cells of a table, which can be nests
`one_function`                 loops that XLA can compile as one function
`choices`                      truth values and integers by which a step chooses
`selected_work`                ops that run for one case of a select
`discarded_rows`               rows of a batch of which selects discard all that comes of them
=============================  =============================================================
"""
