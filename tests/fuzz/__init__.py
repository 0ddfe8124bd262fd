"""Random programs for the optimiser, for hours: ``make fuzz``.

The programs of the passes' own tests, and random recipes (`tests.generate`), are the seeds.  A
program is changed a little where a condition of a pass might be: an index moved by one, an array
read once more, a predicate replaced (`fuzz.mutations`).  Passes run on it, and both versions are
evaluated op by op in NumPy (`fuzz.evaluate`); what differs there is confirmed by JAX itself.
Programs that make passes do or say something new become seeds.
"""
