"""Losses and scores without torch: columns of measurements, NumPy arrays, shapes, where scores are credited."""
