"""What is told of a program: what it holds, keeps and costs, as it grows, and why.

Reports, the lint and memory budgets ask; passes ask `jaxpr_opt.analysis`.
"""
