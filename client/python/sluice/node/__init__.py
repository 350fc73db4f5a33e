"""Runs a layer as one autograd node, chunk by chunk."""
