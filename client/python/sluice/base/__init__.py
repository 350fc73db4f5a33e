"""Shared helpers: errors, argument checks, precision, hashes, randomness."""
