"""The algebra of windows: reading or writing a slice of an array costs the slice, not the array.

JAX builds whole arrays around slices: zeros with one row set, a select between two versions of a
table, a carry through each loop of a nest. Each pass is a law. `a[i]` is any read of a window,
`a.at[i].set(v)` any write, `Z` an array of zeros.

==============================  =====================================================
`narrow-reads`                  ``f(a, b)[i]`` is ``f(a[i], b[i])``
`forward-written-windows`       ``a.at[i].set(v)[j]`` is ``v`` if ``i == j``, or ``a[j]``
`accumulate-sparse-cotangents`  ``a + Z.at[i].set(v)`` is ``a.at[i].add(v)``
`add-in-branches`               ``a + cond(p, v, Z)`` is ``cond(p, a + v, a)``
`join-selected-parts`           ``where(p, a, 0) + where(p, 0, a)`` is ``a``, written into
`sink-select-into-update`       ``where(p, a.at[i].set(v), a)`` is
                                ``a.at[i].set(where(p, v, a[i]))``
`write-after-branches`          the same of ``cond(p, a.at[i].set(v), a)``
`recognize-one-hot`             ``where(iota == i, v, a)`` is ``a.at[i].set(v[i])``
`share-batched-tables`          ``broadcast(a)[k, i]`` is ``a[i]``
`expand-combining-scatters`     ``a.at[i].multiply(v)`` is ``a.at[i].set(a[i] * v)``
`slice-known-windows`           a window at a known index is a slice
==============================  =====================================================

And laws of loops that carry an array:

==============================  =====================================================
`narrow-carried-arrays`         an inner loop carries only the rows it touches
`trace-back-rows`               rows that each step rearranges, rearranged after the loop
`shift-in-place`                a shift register is a ring: where it starts moves
`stack-carried-updates`         a window that slides is streamed in, carried and stacked;
                                most laws lead to it, and it is in the folder above
==============================  =====================================================

A law has a file, not a line of a table as in `laws/simplify`: it holds under three to six
conditions that a user may want to read about, and asks what it gains. What the laws share is below
them: `Access` (one form for all reads and writes), `Chain` (zeros with windows added to them).
"""
