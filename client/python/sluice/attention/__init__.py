"""Attention over chunks: masks, blocks, kernels, exchange between ranks."""
