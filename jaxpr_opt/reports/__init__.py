"""What people see of a program: before and after, what was done, what it keeps and costs."""
