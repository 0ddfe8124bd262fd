"""Arrays that XLA can update in place.

=====================  ===============================================================
`buffers_in_branches`  buffers that branches update
`swapped`              carries that change places from step to step
`row_views`            streams and stacks that are part of a larger array
`descents`             arrays to which a step adds some rows, as gradient descent does
`states`               states of optimizers, of which it changes the same rows
`zero_gradients`       what ops make where a gradient is zero
=====================  ===============================================================
"""
