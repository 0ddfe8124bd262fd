"""Memory budgets: what a program may take, which program that buys, and what its passes share."""
