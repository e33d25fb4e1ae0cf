"""Why training waits: measures the model and the loader, alone and together, and predicts what
fixes would gain.
"""
