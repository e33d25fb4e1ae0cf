"""What is done to the pixels, as the plan draws it: steps on the whole image before the crop
(`whole.py`, `warps.py`), and policies after it, which choose among `operations.py` (`policies.py`,
`timm.py`); in both, functions of the user's (`functions.py`). `lists.py` reads and draws the lists.
"""
