"""Sums in another order, for users who allow it: `optimize(reassociate=True)`.

The results of these passes are rounded otherwise than the program's own. Everything else about them
is as in the other folders.

==================  ==============================================================
`map-sums-once`     a sum of linear maps is the map of the sum, after the loop
==================  ==============================================================
"""
