"""The algebra of windows: reading or writing a slice of an array costs the slice, not the array.

JAX builds whole arrays around slices: zeros with one row set, a select between two versions of a
table, a carry through each loop of a nest.  Each pass is one law:

==============================  ================================================================
`take-arrays-apart`             an array of which only windows are read is these windows
`narrow-reads`                  a read of an op's result becomes the op on reads of its operands
`read-before-moving`            a window of a buffer that is moved is read before it is moved
`compute-read-rows`             ops compute only the rows that are read of what they lead to
`compute-added-rows`            what is made of zeros but for rows is computed from the rows
`take-top-k`                    few elements at one end of a sorted array are selected
`carry-as-written`              a buffer that is reshaped to be written to is carried so
`carry-last-rows`               a stack of which the last row is read is that row, carried
`carry-picked-rows`             a stack of which the data say which row is read is that row, carried
`carry-mapped-rows`             what is made of rows of which a step changes few is carried
`make-streamed-rows`            what a loop streams is made row by row, in the step
`map-stacked-rows`              what is made of each row of a stack is made in the loop, and stacked
`forward-written-windows`       a read of a written window is the written value, or may be
`forward-repeated-rows`         a read of just what was written needs no array
`map-before-reading`           what is made of rows that are read often is made of a table's rows
`map-before-writing`            what is made of zeros with a window is made of the window
`accumulate-sparse-cotangents`  adding zeros with a window set adds to the window
`reduce-added-rows`             a reduction of zeros with rows in them is one of the rows
`scatter-padded-windows`        a padded window, added to scatters, is a scatter of it
`add-before-mapping`           what is made of rows and then added up is made of their sums
`add-in-branches`               adding a cond's result, or its zeros, adds in the branch
`join-selected-parts`           the sum of disjoint parts becomes writes into the whole
`sink-select-into-update`       a select between an array and its update selects the window
`write-after-branches`          a write in a branch moves after the cond
`write-after-loops`             writes into all rows move after the loop over the rows
`put-parts-back`                all parts of an array, put together, are the array, written to
`write-to-whole-arrays`         a window that is read, written and put back is written to the array
`write-rows-together`           rows of a batch that are written at one place are one window
`recognize-one-hot`             a mask with one true element becomes an index
`read-one-hot-rows`             a product with an array of one one is a row
`add-one-hot-rows`              an array of one one is added as a row
`write-where-masked`            a select by where something is written becomes a write
`share-batched-tables`          rows of copies of one table are rows of the table
`share-batched-factors`         products by copies of one matrix are one product by the matrix
`share-batched-results`         what is the same in all rows of a batch is computed once
`sum-batches-at-once`           products or scatters of a batch, summed up over it, are one
`sum-in-steps`                  a sum over the rows of a batch is made in each step of a loop
`multiply-repeated-rows`        a product of rows that are repeated is one of single rows
`expand-combining-scatters`     a multiplication in place becomes a read, a product, a write
`narrow-carried-arrays`         an inner loop carries only the rows it touches
`trace-back-rows`               rows that each step rearranges are rearranged after the loop
`shift-in-place`                a shift register is a ring: where it starts moves
`join-consecutive-rows`         rows at consecutive places are one window
`slice-split-arrays`            parts of a buffer, or of zeros with a window in them, are slices
`slice-known-windows`           a window at a known index becomes a slice
==============================  ================================================================

`stack-carried-updates`, the law that most of them lead to, is in the folder above. As equations, in
the same order, with ``a[i]`` for any read of a window, ``Z`` for an array of zeros, and ``F`` for
one of ``False``::

    f(a, b)[i]                           = f(a[i], b[i])
    reverse(a)[i]                        = a[n - 1 - i]
    a.at[i].set(v)[j]                    = v if i == j else a[j]
    f(a[ids])                            = f(a)[ids]
    f(Z.at[i].set(v))                    = Z.at[i].set(f(v))
    a + Z.at[i].set(v)                   = a.at[i].add(v)
    a + cond(p, v, Z)                    = cond(p, a + v, a)
    where(p, a, 0) + where(p, 0, a)      = a
    scan(a -> b(a'.at[i].set(v)))        = b(scan(a' -> a'.at[i].set(v))), a' = b^-1(a)
    where(p, a.at[i].set(v), a)          = a.at[i].set(where(p, v, a[i]))
    cond(p, a.at[i].set(v), a)           = a.at[i].set(cond(p, v, a[i]))
    scan(a[k] -> a[k].at[i].set(v[k]))   = a.at[:, i].set(v)
    stack([f(a[0]), a[1]])               = a.at[0].set(f(a[0]))
    a.at[i].set(a[i].at[j].set(v))       = a.at[i, j].set(v)
    a[k].at[where(p[k], i, n)].set(v[k]) = a.at[:, i].set(where(p, v, a[:, i]))
    where(arange(n) == i, v, a)          = a.at[i].set(v[i])
    (arange(n) == i) @ a                 = a[i]
    where(F.at[i].set(True), 0, a)       = a.at[i].set(0)
    broadcast(a)[k, i]                   = a[i]
    a[i + arange(n)]                     = a[i : i + n]
    a.at[i].multiply(v)                  = a.at[i].set(a[i] * v)

A law has a file, not a line of a table as in `laws/simplify`: it holds under three to six
conditions that users read about, and asks what it gains. What laws share is in
`jaxpr_opt.analysis.windows`: `Access`, one form for all reads and writes of a window, and `Chain`,
zeros to which windows are added.
"""
