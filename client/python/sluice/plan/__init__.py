"""Activation policies (keep, swap, recompute), plans and chunk sizes."""
