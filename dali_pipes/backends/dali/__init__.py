"""DALI: the graph, what it is fed, how images are decoded."""
