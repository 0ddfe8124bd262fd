"""Break the conditions of the passes, one at a time, and see whether a test notices: ``make
mutants``.
"""
