"""Models of transformers, and decoders of the user's own."""
