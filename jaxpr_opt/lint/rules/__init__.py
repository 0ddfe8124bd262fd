"""The rules, a module for each family; `jaxpr_opt.lint.rule.rules` imports them all."""
