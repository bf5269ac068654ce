"""
Sinkhorn iterations of one sample after the other, compiled by Numba, for arrays in host memory.

The formulas are those of `sinkhorn.sinkhorn_step` and of `anderson`. What an iteration reads stays
in the processor's cache, every sample stops on its own, and several threads share the samples. Only
`solver` is imported from outside, and only where Numba is installed.
"""
