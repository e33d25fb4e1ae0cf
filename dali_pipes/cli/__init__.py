"""The command line: configurations composed by Hydra, help, and mistakes told in one line."""
