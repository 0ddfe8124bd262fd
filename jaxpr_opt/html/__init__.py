"""`jaxpr-opt report --html`: what passes did to a program, as a page."""

from jaxpr_opt.html.page import page as page
