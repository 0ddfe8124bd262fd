"""Sums in another order, for users who allow it: `optimize(reassociate=True)`.

The results of these passes are rounded otherwise than the program's own. Everything else about them
is as in the other folders.

==================  ==============================================================
`map-sums-once`     a sum of linear maps is the map of the sum, after the loop
`join-nested-sums`  an inner loop goes on with the sum of the outer one
`add-scaled-rows`   rows of a gradient are scaled and added one by one
==================  ==============================================================
"""
