"""What equals less, wherever it stands.

XLA knows these laws, too.  They are applied here for other passes to see through, so alone they are
no reason to touch a program.

=============================  =======================================================
`simplify`                     a table of algebra: x + 0 is x, not not p is p
`remove-idle-moves`            a table of moves: a reshape of a reshape is one reshape
`fold-constants`               scalar arithmetic on constants is a constant
`resolve-known-predicates`     inside a branch its predicate is known
`eliminate-dead-code`          what nobody reads need not be computed
`merge-common-subexpressions`  what is computed twice is computed once
=============================  =======================================================
"""
