"""The cost model: the only place that knows prices.

`devices` has the figures, `model` the questions, `ops` what an op computes and moves, `fusion` what
XLA fuses, `work` what a whole run does, `reuse` which buffers are copied, `layouts` which operands
are, `scratch` what an op needs while it runs, `limits` how far passes look.
"""
