"""Questions that passes, lint and reports ask to weigh one program against another.

===========  ==========================================================================
`memory`     what a byte is worth, and what is stored, not computed again
`windows`    a part or most of an array, in place or all of it
`products`   products of matrices, or rows instead
`starts`     ops that are started one by one, in a row, as one function; registers, vectors
`steps`      whether to ask before a step, to branch, to start more loops
===========  ==========================================================================

Each is a class of questions to the cost model (`jaxpr_opt.cost.model.CostModel` is all of them).
An answer is a truth value, or a number of rows or steps; it follows from prices in seconds.
"""
