//! What is resident and how many bytes it takes: the one set of books, kept for the live cache and the simulator alike.
