"""Ops on the rows that matter.

===============  =====================================================
`read_rows`      the rows of results that are read
`read_points`    elements that are read at several places
`points`         what ops make of one element, for several places at once
`added_rows`     what is made of rows that are added to zeros
`added_points`   what is made of elements that are added to zeros
`mapped_reads`   what is made of all rows of tables, then read
`summed_rows`    rows that are added up, and then mapped
`made_rows`      the rows of a stream, made in the step
`shifted_rows`   rows that steps make, of which each has a window of one array
`added_runs`     runs of numbers, moved to their places as a whole
`mapped_rows`    what is made of the rows of a stack, made in the loop
`reduced_stacks` what is reduced over the rows of a stack, reduced in the loop
`selected_ends`  few elements of what would be sorted
===============  =====================================================
"""
