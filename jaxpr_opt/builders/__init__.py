"""Code that passes emit, in folders named like those of passes; what several folders use is here.

===================  =============================================
`same_op`            an op again, on other operands
`residual_transfer`  stacks that one loop makes for another
`swapped_factors`    a product with its second factor first
`step_numbers`       the number of a step, as a value
`fences`             reads before writes
`packed_step`        a step with vectors in place of scalars
`window_by_window`   writes of several windows, one by one
`windows`            reads of windows
`masks`              windows in place of masks
`sparse`             sums of windows in zeros
`writes`             writes, and reads of them
`rows`               ops on some rows
`carried`            loops that carry less
`batches`            one op for a batch
`steps`              loops that skip or merge steps, or stop early
`residuals`          what loops store for others
`in_place`           updates of arrays in their buffers
===================  =============================================
"""
