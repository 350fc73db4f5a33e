"""Adapters for transformers models and for a user's own decoder layers."""
