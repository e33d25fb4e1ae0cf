"""This machine: its cores, memory, GPUs and files, and the resources that programs use."""
