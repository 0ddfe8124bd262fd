"""Sources from which a transposed loop gets the values of the forward loop.

AD stacks them all.  Each pass here knows another source, and asks the cost model for its price:

===========================  ================================================================
`hoist-invariant-residuals`  a loop-invariant value: use it directly
`forward-known-stacks`       a row of an existing array, or affine in the step: read it again
`stack-needed-rows`          few steps make or read it: store the rows of those
`stack-read-windows`         only a window of it is read: store the window
`stack-choices`              one of some outer values: store which
`split-branch-results`       another value in each branch: look at each by itself
`join-branch-results`        results of different branches: store one
`share-shifted-stacks`       the next step stores it anyway
`stack-entering-rows`        a shift register holds what entered before: store what enters
`pack-truth-values`          a truth value beside others: store bits of one number
`stack-narrow-integers`      a small integer: store a byte or two
`undo-carried-writes`        a version of a buffer: undo the writes to it
`narrow-residuals`           recompute it from what is cheaper to store: a minimum cut
`replay-steps`               replay the step, if the loop may stop early
`replay-inner-loops`         run a loop of a step again, if it may stop early
`replay-segments`            replay segments of steps, within a memory budget
`recompute-segments`         recompute segments of straight-line code, within a budget
===========================  ================================================================

Sources that cost nothing come first. Then `narrow-residuals` asks the tables of
`jaxpr_opt.analysis.residuals` for the prices of all others, and finds the cheapest of all plans;
the passes that its plan relies on carry it out.
"""
