"""What one loop stores for another, and where else its readers can get it.

The planner, from the question to the answer:

========================  ====================================================================
`stack_consumers`         which loops read a stack row by row
`cuts`                    the residuals of a loop; cuts of its step, and the cheapest one
`suppliers`               a table: other sources of a value, and what a step stores for them
`repeated_ops`            a table: ops that the readers may compute again, and what that takes
`residual_prices`         both tables as prices of a network
`networks`                the minimum cut
========================  ====================================================================

Sources that a supplier asks about, and their passes: `versions`, `adjacent_step_stacks`,
`register_stacks`. For other passes: `counterparts`, `replays`, `unread_rows`.
"""
