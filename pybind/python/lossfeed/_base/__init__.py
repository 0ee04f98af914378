"""Base of all other folders: exceptions, checks of keywords, literals, sizes, memory of NumPy and torch, processes."""
