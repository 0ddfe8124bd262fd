"""Reports on a program: diffs, explanations, stored residuals and predicted cost."""
