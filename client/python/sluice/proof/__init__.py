"""Trials on a copy of a model (a twin) of whether chunked layers are exact."""
