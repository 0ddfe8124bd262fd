"""What XLA would copy, though it can be written where it is.

These run last, when no other pass moves anything any more.

=========================  =============================================================
`update-rows`              an update that leaves most rows as they are writes the others
`add-in-place`             a read, a sum and a write of one window are one op
`join-scalar-stacks`       the scalars that a step stacks are a row of one stack
`read-before-overwriting`  what is read of a buffer is read before it is overwritten
`read-after-writing`       a write is done before what follows reads
`scan-in-place`            rows that a loop streams and stacks stay where they are
=========================  =============================================================
"""
