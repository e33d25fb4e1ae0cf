"""DALI: the graph, its inputs, and how images are decoded."""
