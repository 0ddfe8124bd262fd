"""Residuals: what one loop stores for another, and where else its readers can get it.

================================================  ==========================================
the planner, from the question to the answer
`stack_consumers`                                 which loops read a stack row by row
`cuts`                                            residuals; cuts of a step; the cheapest cut
`suppliers`                                       a table: other sources of a value
`repeated_ops`                                    a table: ops that readers may compute again
`shifted_reads`                                   how often neighbours are computed again
`residual_prices`                                 both tables as prices of a network
`networks`                                        the minimum cut
what suppliers ask
`versions`                                        versions of a buffer, by undoing writes
`walks`                                           how loops back get a buffer, through nests
`adjacent_step_stacks`                            rows that the next step stacks
`needed_rows`                                     steps that make a row, and that read it
`register_stacks`                                 rows that enter a shift register
`packed_truths`                                   truth values as bits of numbers
`narrow_integers`                                 integers that fit into fewer bytes
`fewer_bytes`                                     whether that pays
`branch_results`                                  what each branch of a cond gives its readers
`kept_alive`                                      what is in memory no longer when they read
what other passes ask
`mapped_sums`                                     what to add up in place of linear maps of it
`counterparts`                                    what a value of a reader was in the step
`replays`                                         what it takes to compute steps again
`replayed_steps`                                  which steps store, and which are computed again
`skipped_segments`                                the same, by segments that may be skipped
`phases`                                          steps in which what they choose is known
`inner_loops`                                     loops of a step that may stop early
`unread_rows`                                     rows of skipped steps that nothing reads
`same_choices`                                    loops that read, and choose as the step did
`alike_branches`                                  reads in the branch that made the value
`chosen_work`                                     what a step computes in some cases only
`stencils`                                        arrays that are combined with shifted ones
================================================  ==========================================
"""
