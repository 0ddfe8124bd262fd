"""How far passes and analyses look: limits that bound compile time; they are not prices.

A program beyond a limit is left unchanged.
"""

ROUNDS = 256
"""Rounds of one stage before it is declared divergent. Few programs need more than 9, but a read
may move through one sum of a value with itself in each round."""

NESTED_FUNCTIONS = 16
"""Optimised functions, each called by the one before. Tracing one takes more of Python's stack than
`jax.jit` does."""

WAY_TO_AN_INDEX = 48
"""Ops between an index and what it is computed from."""

TERMS_OF_A_SUM = 32
"""Arrays that are added up one after the other."""

OPS_OF_A_SUM = 512
"""Ops between the terms of a sum over a batch and their sum."""

WRITES_IN_A_ROW = 16
"""Writes to one array, each to what the one before it left."""

OPS_BESIDE_A_COND = 32
"""Ops that are repeated in each branch: more would make the program too large. Also, ops between a
read and the cond that it is for."""

ROWS_CARRIED = 8
"""Rows of an array that a loop carries as values of their own."""

OPS_OF_A_ROW = 32
"""Ops, one after the other, that a step makes a row by."""

OPS_OF_ROWS = 256
"""Ops of which only some rows are needed that are computed for these, in all."""

READS_OF_ROWS = 8
"""Reads for each of which ops compute rows again."""

WRITES_OF_A_STEP = 6
"""Writes to one array in a step, if what is read between them is compared with all before it: half
as many comparisons as the square of the writes."""

RUNS = 3
"""Runs of consecutive places at which numbers are added: each is one more sum of arrays."""

AROUND_A_WINDOW = 3
"""Windows along each axis that lie side by side where one is moved within numbers."""

PARTS_OF_A_PRODUCT = 32
"""Parts of a product, or of a factor, that are multiplied one by one; and how deep they are joined.
"""

OPS_BEFORE_A_FUNCTION = 12
"""Ops that make what a transcendental function is computed of, for the windows that they read."""

LEVELS_OF_A_PREDICATE = 12
"""How deep in the logic of a predicate a part of it may be that says alone which steps are taken:
what a step is if it is false is asked for each."""

FACTS_OF_A_SKIP = 4
"""Choices of a step that together make it do nothing."""

CHOICES_OF_A_STEP = 64
"""Ways to choose that are tried until a step does nothing."""

MASKS_OF_A_LOOP = 8
"""Masks outside of a loop that are compared with each of its predicates."""

WALKS = 32
"""How often all ops of a step are asked again, each time under another predicate, until no more
predicates are looked at: hundreds that each tell of all ops after them take too long."""

SUMS_IN_A_ROW = 64
"""Sums, one inside the other, that become part of an array to which they would be added."""

LEVELS_COMPARED = 3
"""How far back scalars are compared to find those that are computed alike."""

ELEMENTS_OF_A_ROW = 1024
"""Elements of an array that are looked at one by one."""

BYTES_OF_INDICES = 2**18
"""Bytes of a constant whose least and largest number are looked up."""

BYTES_COMPARED = 64
"""Bytes of a constant that is compared with others by its contents; larger ones by identity."""

STEPS_KNOWN = 2**16
"""Steps of a loop whose numbers are computed at compile time, in less than a millisecond an op."""

PHASES = 4
"""Pieces that one loop is divided into, at most: each has to be compiled."""

WINDOWS_TAKEN_APART = 2**14
"""Windows of all versions of an array that are computed one by one instead of it."""

STEPS_DIVIDED = 16
"""Steps of a loop that is divided into pieces, at least: fewer gain less than compiling them takes.
"""

STEPS_AT_ONCE = 4
"""Steps of a loop that are taken at once, at most."""

OPS_AT_ONCE = 256
"""Ops of these steps together, at most: each has to be compiled."""

STEPS_OF_A_ROUND = 64
"""Steps after which choices come round, at most, for a loop to be divided into rounds of them."""

STATES_OF_A_COUNTER = 512
"""Numbers that a counter takes before it starts again."""

LEAST_ROWS = 33
"""Carries of a `while` that are kept for its gradient, however large: with them no step of 561 is
computed more than once again, none of 6545 more than twice."""

MOST_ROWS = 257
"""Carries that are kept of a small one: with them no step of 33,153 is computed more than once
again."""

BYTES_OF_ROWS = 2**18
"""Bytes of carries that are kept if there are more than the least, in all steps of the loops
around: XLA fills them in some microseconds, however few steps are taken."""

FEWEST_ROWS = 8
"""Carries that are kept however small a memory budget is: with them no step of 36 is computed more
than once again, none of 330 more than three times, none of 3432 more than six times."""

PARTS_OF_A_BUDGET = 2
"""The carries of loops may take one part of a memory budget; what a step takes has the other."""

CUTS = 96
"""Places at which straight-line code may be divided into segments that are computed again."""

WORTHS = 12
"""Prices of a byte for which it is tried which arrays are stored between such segments."""

NEXT_BOUND = 0.85
"""How much less memory than the last division into segments the next one may take."""

LAST_BOUND = 0.98
"""The same below the least that is found so."""

PARTS_OF_A_SEGMENT = (1.0, 2.0, 4.0)
"""How much a part of a segment that is divided again may take, of the least that is possible."""

NEXT_LEAST = 0.97
"""How much less memory a slower division has to take, or it is none to choose."""

BOUNDS = 28
"""How many such divisions are tried: the last takes an eightieth of the memory of the first."""

NEAR_TIE = 1.05
"""How many times as long a program has to take, as predicted, to be the slower one for sure."""

LAST_OFFERS = 3
"""Programs that are made to find the smallest."""

ARRAYS_FUSED = 64
"""Arrays that ops read which are taken for one fusion."""

PLACES_FUSED = 15
"""Places at which one fusion computes an op, at most."""

LEAST_BUFFER = 1 / 1024
"""Of a program's memory, the least that a buffer takes for which a place is looked for."""

PRICES = tuple(2.0 ** (half / 2) for half in range(-12, 21))
"""What a byte may be worth to a memory budget, in seconds of the whole program for each byte that
it takes: at the first price, all of its memory is worth a sixty-fourth of its time, and at the last
a 1024th of its memory is worth all of its time."""

OPS_OF_A_RANGE = 256
"""Ops of a step of which the least and the greatest results are computed."""

OF_ITS_RANGE = 0.25
"""The part of the numbers of a dtype that ranges may take: they are known up to rounding."""

OF_A_FUNCTION = 1e-2
"""By how much of itself a function's result may be rounded."""

OF_A_SUM = 80.0
"""The logarithm of by how much of itself a sum may be rounded, at most: more is not finite."""

ERF_INV = 6.0
"""More than the inverse of the error function of any float between -1 and 1."""

LEVELS_OF_A_SELECT = 3
"""How deep selects are in cases of others, of which each tells of what its cases are made."""

OPS_OF_A_CASE = 16
"""Ops of a case of a select of which it is asked what they make where that case is taken."""

NUMBERS_LOOKED_AT = 256
"""Numbers of a table that are looked at together: XLA stores what it reduces."""

COUNTED = 2**31 - 1
"""Numbers that are counted in an integer of 32 bits."""

EXACT_NUMBERS = 2**23
"""Integers up to this are exact as floats."""

ROWS_NUMBERED_AT_ONCE = 256
"""Rows whose numbers may be an array, to find the last one that a mask tells: 1 kB."""

ARRAYS_OF_A_FUNCTION = 24
"""Arrays that the steps of a loop hand on, or reduce, where XLA:CPU makes one function of it. It
compiles a loop that hands on 26 for 7 s instead of 0.8, one that hands on 61 for minutes, and one
that reduces 40 for 4 s instead of 1.2; numbers take no longer.
"""
