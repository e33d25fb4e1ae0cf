"""The command line: configurations composed by Hydra, help, and mistakes reported in one line."""
