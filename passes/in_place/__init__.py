"""Avoid copies that XLA would make of arrays that can be updated in place.

These passes run last, when no other pass moves an op.

=========================  ============================================================
`update-rows`              update only the rows where a gradient is nonzero
`update-states`            the same with the state of an optimizer, such as Adagrad
`add-in-place`             a read, a sum and a write of one window become one op
`write-in-branches`        a branch that updates an array becomes a loop of one step
`read-around-writes`       windows are read before the writes of a step
`read-before-overwriting`  reads are ordered before what overwrites them
`read-after-writing`       a write is ordered before the reads that follow
`unroll-swapped-carries`   as many steps at once as bring buffers back to their places
`write-apart`              a write stays out of the ops that read all of the array
`carry-bits`               bits of bfloat16 are written, which XLA does not convert
`scan-in-place`            streamed and stacked rows stay in the array they are part of
=========================  ============================================================
"""
