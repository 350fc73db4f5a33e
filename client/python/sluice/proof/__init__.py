"""Trials on a copy of a model (a twin) that check whether chunks are exact."""
