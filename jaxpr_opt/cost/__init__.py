"""The cost model: the only place that knows prices.

===============  ===========================================================================
of a device
`devices`        its figures
`lowering`       what XLA makes of a program there: which ops are fused, what is copied
`prices`         what that takes, in seconds
`questions`      what pays: the questions that passes ask, by their kind
`model`          all of them, and the model that is in use
`segments`       how long the segments of a recomputed loop are
of programs
`ops`            what an op computes, and how many bytes it touches
`windows`        what an op moves of an array that it reads or writes in part
`fusion`         what XLA fuses
`functions`      which functions of numbers take longer than others
`jumps`          which ops it computes number by number, not several at once
`reuse`          which buffers it takes over, and which it copies
`layouts`        which operands it copies, to read them in another order
`scratch`        what an op needs while it runs
`work`           what a whole run does
`known_seconds`  how long ops take whose cost is known
of passes
`limits`         how far they look
===============  ===========================================================================
"""
