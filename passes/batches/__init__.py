"""What `jax.vmap` makes of a program: equal rows are computed once, and rows are combined at once.

========================  ==============================================================
`share-batched-tables`    rows of copies of one table are rows of the table
`share-batched-factors`   products by copies of one matrix are one product by the matrix
`share-batched-results`   what is the same in all rows of a batch is computed once
`sum-batches-at-once`     products or scatters of a batch, summed up over it, are one
`sum-in-steps`            a sum over the rows of a batch is made in each step of a loop
`multiply-repeated-rows`  a product of rows that are repeated is one of single rows
`write-rows-together`     rows of a batch that are written at one place are one window
========================  ==============================================================

As equations::

    broadcast(a)[k, i]                    = a[i]
    a[k].at[where(p[k], i, n)].set(v[k])  = a.at[:, i].set(where(p, v, a[:, i]))
"""
