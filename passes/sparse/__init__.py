"""An array that is zero but for some windows is computed as these windows.

==============================  =========================================================
`accumulate-sparse-cotangents`  adding zeros with a window set adds to the window
`map-before-writing`            what is made of zeros with a window is made of the window
`reduce-added-rows`             a reduction of zeros with rows in them is one of the rows
`scatter-padded-windows`        a padded window, added to scatters, is a scatter of it
`add-in-branches`               adding a cond's result, or its zeros, adds in the branch
==============================  =========================================================

The transpose of a read makes such an array. As equations, with ``Z`` for an array of zeros::

    f(Z.at[i].set(v))   = Z.at[i].set(f(v))
    a + Z.at[i].set(v)  = a.at[i].add(v)
    a + cond(p, v, Z)   = cond(p, a + v, a)
"""
