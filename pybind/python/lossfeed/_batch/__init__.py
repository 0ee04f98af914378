"""Batches: views of filled slots, packed samples, the way to a CUDA device."""
