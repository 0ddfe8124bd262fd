"""Which rows of arrays ops compute, and of which rows.

===============  =================================================================
`row_axes`       the axis of a result that the rows of an operand are along
`selections`     reads of a part of some axes
`read_rows`      which ops need to compute only the rows that are read
`added_rows`     which ops need to compute only what is made of rows in zeros
`added_points`   the same of elements at several places
`mapped_reads`   what is made of rows that are read more often than there are
`summed_rows`    sums of what is made of rows, of which many are of one of a table
`sorted_ends`    sorted arrays of which few elements at one end are read
`row_readers`    ops that make something smaller of each row of a stack
`reduced_stacks` reductions over all rows of a stack
`shifted_rows`   arrays that each step makes, and that only move on from step to step
`added_runs`     numbers that are added at places that move on from step to step
`streamed_rows`  ops before a loop that make what it streams, row by row
===============  =================================================================
"""
