"""Trials on twins that a layer cut into chunks computes the same."""
