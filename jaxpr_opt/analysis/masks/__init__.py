"""Masks and selects that choose a part of an array.

===================  ===========================================================
`one_hot`            masks that are true at one place
`picked_arrays`      arrays that are zero but for one place a row, or several
`picked_places`      which arrays are zero but for one place
`picked_sums`        products and sums of arrays that are zero but for one place
`masks_at_windows`   a mask of an array, at a window of it
`written_masks`      masks that tell where an array was written to
`selected_versions`  versions of an array, of which a select chooses
`parts`              parts of one array, each zero where the others are not
===================  ===========================================================
"""
