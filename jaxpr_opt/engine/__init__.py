"""The graph, its way in and out of a jaxpr, and what runs passes over it.

`importer` -> `ir`, changed by `rewriter` only, checked by `verify`, shown by `text` -> `exporter`.
`interface` says what a pass is; `running` runs passes, `pipeline` all that `registry` finds, and
`journal` remembers what they did.
"""
