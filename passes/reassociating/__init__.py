"""Sums in another order, for users who allow it: `optimize(reassociate=True)`.

Results are rounded otherwise than the program's own. Everything else is as in the other folders:

==================  ==============================================================
`map-sums-once`     a sum of linear maps is the map of the sum, after the loop
`join-nested-sums`  an inner loop goes on with the sum of the outer one
`add-scaled-rows`   rows of a gradient are scaled and added one by one
==================  ==============================================================

`compute-read-rows`, in `windows`, then also passes sums and products.
"""
