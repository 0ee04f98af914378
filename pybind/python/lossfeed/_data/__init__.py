"""Datasets: opening them, what a sample is made of, and how Python datasets are read (threads, worker processes)."""
