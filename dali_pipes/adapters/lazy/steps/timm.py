"""timm: its policies call Pillow (pillow.py), and its RandomErasing tensors (torch_ops.py)."""
