"""Arrays that are zero but for some windows.

=================  ===============================================================
`scatter_chains`   zeros, or an array, to which windows are added: a `Chain`
`disjoint_pieces`  which of these windows may be the same
`sums`             how they are added
`shared_operands`  operands that are the same along the axes of their places
`moved_writes`     data movement of a window in zeros, before the write
`placed_windows`   a window in zeros that is put into larger zeros
`turned_windows`   windows in zeros that are turned round, or lose an edge
`mapped_windows`   what is made of a window in zeros, before the write
`padded_sums`      sums of windows in zeros, at known places
`made_of_rows`     what elementwise ops make of an array that is zero but for rows
=================  ===============================================================
"""
