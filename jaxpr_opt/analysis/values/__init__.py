"""Facts about single values, and about the expressions that compute them.

====================================  ======================================================
`constants`                           numbers that all elements are; undefined and weak types
`affine`, `induction`, `intervals`    integers as functions of loop steps, and their ranges
`float_bounds`                        between which numbers floats are, whatever the arguments
`float_rules`                         what ops make of floats between two numbers
`ranges`                              the least and the greatest number of an array, at run time
`softmax`                             differences from the greatest of a row
`step_numbers`                        integers of each step, known at compile time
`algebra`                             laws of single ops
`selected_cases`                      which case a select takes inside another one
`flags`                               numbers that are zero or one, or between, and their logic
`truths`                              what a truth value tells of those that it is made of
`expressions`, `value_numbering`      equal expressions; all equal values of a program
`handed_on`                           what a loop has computed before the step that computes it
`copies`                              arrays that are the same along an axis
`moves`                               reshapes and transpositions that take each other back
`renaming`                            other names of a value
`enclosing`                           the loop that an op is in, and later readers
`varying`                             why a value changes from step to step
`repeatable`                          what may be made before a branch instead of in it
`invariant_ops`                       what is better computed once, before a loop
`origins`                             what cheap ops compute values from
`linearity`                           linear programs, and loops that carry cotangents
`accumulators`                        carries to which steps only add
`rounding`                            what XLA may round otherwise if it is recomputed
`compared`                            what is compared with what is computed apart from it
`live_values`                         values that are read
====================================  ======================================================
"""
