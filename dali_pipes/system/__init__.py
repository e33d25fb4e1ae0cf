"""This machine: its cores, memory, GPUs and files, and what programs run on it use."""
