"""Attention over chunks: masks, blocks, kernels, the exchange."""
