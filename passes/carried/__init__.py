"""A loop carries the rows that its steps need, not whole arrays.

=======================  ====================================================================
`narrow-carried-arrays`  an inner loop carries only the rows it touches
`carry-last-rows`        a stack of which the last row is read is that row, carried
`carry-picked-rows`      a stack of which the data say which row is read is that row, carried
`carry-mapped-rows`      what is made of rows of which a step changes few is carried
`carry-as-written`       a buffer that is reshaped to be written to is carried so
`read-before-moving`     a window of a buffer that is moved is read before it is moved
`shift-in-place`         a shift register is a ring: where it starts moves
`trace-back-rows`        rows that each step rearranges are rearranged after the loop
=======================  ====================================================================

As an equation, where ``b`` is a reshape, or another op that moves elements::

    scan(a -> b(a'.at[i].set(v)))  = b(scan(a' -> a'.at[i].set(v))), a' = b^-1(a)
"""
