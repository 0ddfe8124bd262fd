"""The algebra of windows: what is read of an array, or written to it, costs its pieces only.

JAX makes whole arrays of pieces: zeros with one row in them, a select between two versions of a
table, a carry through each loop of a nest.  A law a pass:

==============================  ================================================================
`narrow-reads`                  a read of what an op made is that op, of reads
`forward-written-windows`       a read of what was written there is what was written
`accumulate-sparse-cotangents`  adding zeros with a piece in them is adding to the piece
`add-in-branches`               adding what a branch made, or its zeros, is adding in the branch
`join-selected-parts`           the sum of two parts of an array is one written into the other
`sink-select-into-update`       selecting an array or its update is updating with a selection
`write-after-branches`          a write in a branch is a write, after it, of what it hands out
`recognize-one-hot`             a mask with one true element is an index
`share-batched-tables`          rows of copies of one table are rows of the table
`expand-combining-scatters`     multiplying in place is a read, a product and a write
`narrow-carried-arrays`         a loop that touches some rows carries those rows
`slice-known-windows`           a window whose place is known is a slice
==============================  ================================================================

The law that most of them lead to, `stack-carried-updates`, is beside this room.
"""
