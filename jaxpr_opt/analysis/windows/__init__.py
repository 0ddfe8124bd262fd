"""Arrays that are read and written a window at a time.

==========================  ================================================================
one op
`window_primitives`         how JAX's primitives say which windows they touch
`access`                    the window that an op touches, and where it is in each step
`boxes`, `taken_apart`      windows at known places; arrays of which only such are read
`consecutive`               rows at consecutive places, which are one window
`concat_operands`           the operand of a concatenation that a window lies in
`row_sources`               the arrays that the rows of an array come from
`row_axes`                  the axis of a result that the rows of an operand are along
`repeated`                  axes along which all rows are the same
`repeated_parts`            parts of a product's factor that are the same for many rows
`summed_parts`              products of which parts are read as sums only
`batch_sums`                what is summed up over a batch: products, scatters of each row
`summed_in_steps`           the same, of what a loop makes step by step
`selections`, `read_rows`   reads of a part of some axes; which ops need to compute only that
`added_rows`                which ops need to compute only what is made of rows in zeros
`sorted_ends`               sorted arrays of which few elements at one end are read
`selected_versions`         versions of an array, of which a select chooses
`branch_writes`             the windows that branches of a cond write
`put_parts`                 all parts of an array, put together again
`turned_windows`            windows in zeros that are turned round, or lose an edge
`moved_reads`               windows of what is moved, and which of its operands these are
`reshaped`                  where a window is in an array of another shape
`reshaped_writes`           writes into an array that is reshaped for them, and back
`nested`                    a write to a window that is then put back into its array
`moved_writes`              data movement of what is written, before the write
`mapped_carries`            what a step makes of rows of a carry, of which it changes few
`mapped_reads`              what is made of rows that are read more often than there are
`summed_rows`               sums of what is made of rows, of which many are of one of a table
`mapped_windows`            what is made of a window in zeros, before the write
`shared_places`             writes of a batch at one place, by those rows that write
`one_hot`                   masks that are true at one place
`picked_arrays`             arrays that are zero but for one place a row, or several
`picked_places`             which arrays are
`picked_sums`               products and sums of them
`masks_at_windows`          a mask of an array, at a window of it
`written_windows`           reads of what was written, or is made of that
`written_masks`             masks that tell where an array was written to
`coinciding`                windows that coincide or are disjoint
`placed_windows`            a window in zeros that is put into larger zeros
`parts`                     parts of one array, each zero where the others are not
`stencils`                  arrays that are combined with shifted ones
sums of windows
`scatter_chains`            zeros, or an array, to which windows are added: a `Chain`
`disjoint_pieces`, `sums`   which of these windows may be the same, and how they are added
`shared_operands`           operands that are the same along the axes of their places
`descents`, `states`        arrays that a sparse gradient changes in some rows
`zero_gradients`            what ops make where it is zero
`made_of_rows`              what they make of all of it
arrays that a loop carries
`buffers`                   all accesses to a carried array: a `Buffer`
`buffers_in_branches`       buffers that branches update
`overwritten`               reads of what a write overwrites
`swapped`                   carries that change places from step to step
`sliding`, `sliding_costs`  a window that slides over a buffer, and whether to stack it
`blocks`                    the rows of a buffer that a loop touches
`shift_registers`           carries that drop rows at one end and take some at the other
`rings`                     shift registers that could be rings
`histories`                 buffers whose rows each step rearranges
`last_rows`                 stacks of which the last row is read, streams of which the first counts
`picked_rows`               stacks of which one row is read, at a place that the data say
`row_readers`               ops that make something smaller of each row of a stack
`streamed_rows`             ops before a loop that make what it streams, row by row
`row_views`                 streams and stacks that are part of a larger array
==========================  ================================================================
"""
