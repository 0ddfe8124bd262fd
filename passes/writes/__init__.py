"""Readers of a written window get what was written; the write moves out of branches and loops.

===========================  ===================================================================
`forward-written-windows`    a read of a written window is the written value, or may be
`forward-repeated-rows`      reads of rows, some just written or added to, need no array
`expand-combining-scatters`  a multiplication in place becomes a read, a product, a write
`write-after-branches`       a write in a branch moves after the cond
`write-after-loops`          writes into all rows move after the loop over the rows
`put-parts-back`             all parts of an array, put together, are the array, written to
`write-to-whole-arrays`      a window that is read, written and put back is written to the array
===========================  ===================================================================

As equations::

    a.at[i].set(v)[j]                   = v if i == j else a[j]
    a.at[i].add(v)[j]                   = a[j].at[k].add(v), if j[k] == i
    a.at[i].multiply(v)                 = a.at[i].set(a[i] * v)
    cond(p, a.at[i].set(v), a)          = a.at[i].set(cond(p, v, a[i]))
    scan(a[k] -> a[k].at[i].set(v[k]))  = a.at[:, i].set(v)
    stack([f(a[0]), a[1]])              = a.at[0].set(f(a[0]))
    a.at[i].set(a[i].at[j].set(v))      = a.at[i, j].set(v)
"""
