"""One op for the rows of a batch.

==================================  ===============================
`shared_tables`                     one table for all rows
`shared_factors`, `shared_kernels`  one matrix, or kernel
`shared_results`                    one result
`batch_sums`                        sums over a batch, at once
`sums_in_steps`                     sums over a batch, step by step
`repeated_parts`                    products by parts of a factor
`merged_rows`                       products along axes that are merged
==================================  ===============================
"""
