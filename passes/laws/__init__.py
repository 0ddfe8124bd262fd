"""Equalities that hold everywhere in a program: canonicalisation and clean-up.

XLA applies them, too.  Here they let other passes match, so alone they are no reason to touch a
program.

=============================  =======================================================
`simplify`                     algebra: x + 0 is x, not not p is p
`remove-idle-moves`            data movement: a reshape of a reshape is one reshape
`fold-constants`               scalar arithmetic on constants
`open-checkpoints`             a checkpoint that keeps nothing apart is its ops
`resolve-known-predicates`     inside a branch its predicate is known
`carry-truth-values`           a number that is zero or one is carried as a truth value
`eliminate-dead-code`          values that nothing reads
`merge-common-subexpressions`  values that are computed twice
=============================  =======================================================
"""
