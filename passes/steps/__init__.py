"""Which steps of a loop are taken, and which branches.

=======================  ===============================================================
`collapse-loops`         a loop of loops, both of which skip, is one loop
`count-steps`            how many steps were taken is one number, not a predicate a step
`exit-loop-early`        when all further steps do nothing, the loop is left
`isolate-skipped-steps`  a batched step that every row skips is a branch not taken
`skip-untaken-branches`  a batched branch that no row takes is not computed
`fuse-branches`          two branches on one predicate are one
=======================  ===============================================================
"""
