"""Ops compute only the rows that matter, and where that takes the least work.

======================  ====================================================================
`compute-read-rows`     ops compute only the rows that are read of what they lead to
`compute-added-rows`    what is made of zeros but for rows is computed from the rows
`take-top-k`            few elements at one end of a sorted array are selected
`map-before-reading`    what is made of rows that are read often is made of a table's rows
`add-before-mapping`    what is made of rows and then added up is made of their sums
`make-streamed-rows`    what a loop streams is made row by row, in the step
`compute-shifted-rows`  what steps make of their number and of places is made once
`add-in-runs`           numbers at places that move on are added as runs
`map-stacked-rows`      what is made of each row of a stack is made in the loop, and stacked
`reduce-stacked-rows`   what is reduced over all rows of a stack is reduced in the loop
======================  ====================================================================

As equations, with ``Z`` for an array of zeros::

    f(a)[i]               = f(a[i])
    f(a[ids])             = f(a)[ids]
    g(Z.at[ids].set(v))   = Z.at[ids].set(g(v))
    scan(f(a)[k] -> b)    = scan(a[k] -> f(a[k]) -> b)
    sum(scan(a -> b))     = scan(a, s -> b + s)
    scan(f(k - p) -> b)   = F = f(all k - p); scan(F[k] -> b)
"""
