"""The graph, its way in and out of a jaxpr, and what runs passes over it.

`importer` -> `ir`, changed by `rewriter` only, checked by `verify`, shown by `text` -> `exporter`.
`pipeline` runs the passes that `registry` finds, and `journal` remembers what they did.
"""
