"""Sums of windows in zeros.

===================================  ================================================
`summed_windows`                     additions in place
`repeated_rows`                      sums of rows at equal places
`tiled_windows`                      a window as others that tile it
`padded_sums`                        a sum of windows in zeros, part by part
`reduced_rows`                       reductions of zeros with rows in them
`reduction_privatization`            sums in another place, in the old order
`sums_in_slots`, `sums_in_an_array`  the same: in a slot a step, or in a second array
`carried_scratch`                    the array that a loop carries for them
===================================  ================================================
"""
