"""Leased memory for tensors: host arena, GPU slots, copies between them."""
