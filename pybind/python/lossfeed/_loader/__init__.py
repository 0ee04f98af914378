"""The loader: its keywords, epochs, orders, ranks, states and statistics; loaders beside it (streams, stage, Scores)."""
