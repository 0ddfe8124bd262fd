"""Reads of windows: a read of a slice costs the slice, not the array.

JAX builds whole arrays around slices: zeros with one row set, a select between two versions of a
table, a carry through each loop of a nest. This folder and the next ones (`masks`, `sparse`,
`writes`, `rows`, `carried`, `batches`) are the algebra of windows; each pass is one law of it.
`stack-carried-updates`, the law that most of them lead to, is in the folder above.

=======================  ================================================================
`narrow-reads`           a read of an op's result becomes the op on reads of its operands
`take-arrays-apart`      an array of which only windows are read is these windows
`slice-split-arrays`     parts of a buffer, or of zeros with a window in them, are slices
`slice-known-windows`    a window at a known index becomes a slice
`join-consecutive-rows`  rows at consecutive places are one window
=======================  ================================================================

As equations, with ``a[i]`` for any read of a window::

    f(a, b)[i]        = f(a[i], b[i])
    reverse(a)[i]     = a[n - 1 - i]
    a[i + arange(n)]  = a[i : i + n]

A law has a file, not a line of a table as in `laws/simplify`: it holds under three to six
conditions that users read about, and asks what it gains. What laws share is in the folders of the
same names in `jaxpr_opt.analysis`: `windows.access.Access`, one form for all reads and writes of a
window, and `sparse.scatter_chains.Chain`, zeros to which windows are added.
"""
