"""How the weights change: the optimizer, its parameter groups, the learning rate of every step."""
