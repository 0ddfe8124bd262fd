"""Analyses for reports, the linter and memory budgets: live ranges, residuals, growth, and causes.

Passes use `jaxpr_opt.analysis`, and ask `weighing` whether a rewrite pays in memory.
"""
