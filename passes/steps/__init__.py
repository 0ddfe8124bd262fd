"""Which steps of a loop run, and which branches.

=======================  =====================================================
`collapse-loops`         a loop of loops that both skip steps becomes one loop
`split-flat-loops`       a loop over all cells becomes rows of cells
`split-phases`           a loop becomes one for each phase in which it chooses the same
`count-steps`            one count of steps replaces a predicate per step
`ask-about-choices`      a choice with which a step does nothing is asked whether it is made
`ask-about-factors`      a factor that makes a step do nothing is asked whether it is zero
`remember-the-end`       a loop carries whether it goes on, where a counter is asked, too
`exit-loop-early`        a loop stops when its remaining steps do nothing
`end-at-read-rows`       a loop ends after the last row that is read of what it stacks
`begin-at-cotangents`    a transposed loop begins at the first cotangent that is not zero
`rotate-loops`           a step reads what the predicate of its loop computed
`isolate-skipped-steps`  a step that may be skipped becomes a branch
`isolate-dropped-steps`  a step of which nothing is used becomes a branch, forward and backward
`isolate-selected-work`  what a step computes for a select becomes a branch, forward and backward
`skip-untaken-branches`  a batched branch that no row takes is not computed
`fuse-branches`          two conds on one predicate become one
=======================  =====================================================
"""
