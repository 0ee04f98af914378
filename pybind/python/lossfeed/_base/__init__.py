"""What every other folder uses: exceptions, checks of keywords, literals, sizes, memory of NumPy and torch, processes."""
