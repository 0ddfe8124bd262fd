"""Where a transposed loop gets the values of the loop it is the transpose of.

AD stacks them all.  Each pass here knows another source, and asks the cost model for its price:

===========================  =============================================================
`hoist-invariant-residuals`  it is the same at every step: take it from outside
`forward-known-stacks`       it was a row of an array that is there, or affine in the step
`stack-read-windows`         a window is read of it: store the window
`stack-choices`              it is one of some outer values: store which
`share-shifted-stacks`       the next step keeps it anyway
`undo-carried-writes`        it is a version of a buffer: walk the writes back
`narrow-residuals`           make it again from what is cheaper to store: a minimum cut
`replay-steps`               run the step again, where the loop may stop early
`replay-segments`            run segments of steps again, within a memory budget
`recompute-segments`         run segments of straight-line code again, within a budget
===========================  =============================================================

Beside this room are two of its kind: `drop-dummy-residuals` (an untaken branch had to hand out
something, which nobody reads) and `push-remat-into-branches` (a checkpointed branch makes again
what only it needs).
"""
