"""A mask or a select that chooses one window becomes the window.

=========================  ===========================================================
`recognize-one-hot`        a mask with one true element becomes an index
`read-one-hot-rows`        a product with an array of one one is a row
`add-one-hot-rows`         an array of one one is added as a row
`write-where-masked`       a select by where something is written becomes a write
`sink-select-into-update`  a select between an array and its update selects the window
`join-selected-parts`      the sum of disjoint parts becomes writes into the whole
=========================  ===========================================================

As equations, with ``F`` for an array of ``False``::

    where(arange(n) == i, v, a)      = a.at[i].set(v[i])
    (arange(n) == i) @ a             = a[i]
    where(F.at[i].set(True), 0, a)   = a.at[i].set(0)
    where(p, a.at[i].set(v), a)      = a.at[i].set(where(p, v, a[i]))
    where(p, a, 0) + where(p, 0, a)  = a
"""
