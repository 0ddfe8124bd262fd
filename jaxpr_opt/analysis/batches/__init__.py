"""What `jax.vmap` makes: rows that are equal, and rows that are combined.

=================  =================================================================
`repeated`         axes along which all rows are the same
`repeated_parts`   parts of a product's factor that are the same for many rows
`merged_rows`      products along an axis that is merged of several
`summed_parts`     products of which parts are read as sums only
`batch_sums`       what is summed up over a batch: products, scatters of each row
`summed_in_steps`  what is summed up over a batch, of what a loop makes step by step
`shared_places`    writes of a batch at one place, by those rows that write
=================  =================================================================
"""
