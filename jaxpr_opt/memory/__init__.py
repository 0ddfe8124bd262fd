"""Memory budgets: their syntax, the planner, what is done without one, and what passes share."""
