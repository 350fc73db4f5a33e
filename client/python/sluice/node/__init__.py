"""A layer as one autograd node, chunk by chunk."""
