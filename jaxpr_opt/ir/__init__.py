"""The graph of a program, and the ways from and to jaxprs.

============================  ==============================================================
the graph
`graph`                       its classes: values, ops, regions, loops
`rewriter`                    the only code that changes it
`verify`, `verify_types`      what must hold of it
`text`, `text_params`         its textual form
what it says of ops
`dataflow`                    what values are made of, and what is made of them
`nesting`                     what an op is in
`traits`                      facts about primitives
`by_element`                  functions of each element that have a rule for their derivative
`places`                      the user's line, and the size of a value
`devices`                     whether arrays are divided over devices
`unrolling`                   how many steps of a loop run as one
`facts`                       answers, remembered until the graph changes
jaxprs
`importer`, `exporter`        from a jaxpr, and to one
`checkpointed`                a `while` that JAX can differentiate backwards
`aliases`                     which inputs become which outputs
============================  ==============================================================
"""
