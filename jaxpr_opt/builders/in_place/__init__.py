"""Updates of arrays in their buffers.

==================  ===============================================
`descent_rows`      steps of gradient descent on some rows
`state_rows`        steps of an optimizer with a state on some rows
`at_most_once`      a step that is taken once, or not at all
`branches_in_turn`  branches as loops of at most one step
`steps_at_once`     several steps in one
`bits`              integers in place of numbers of bfloat16
==================  ===============================================
"""
