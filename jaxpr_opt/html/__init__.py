"""`jaxpr-opt report`: what happened to a program, as a page to look at."""

from jaxpr_opt.html.page import page as page
