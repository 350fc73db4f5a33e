"""What is kept, swapped and recomputed: policies, plans, chunk sizes."""
