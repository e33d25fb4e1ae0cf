"""Compares a converted loader with the old one.

- `batches.py`: a batch of either: its structure, dtypes and shapes; for an evaluation its values
  too, which must be equal, pixels up to rounding;
- `draws.py`: for training, where no two draws are equal: distributions of what the live steps draw
  must be those of the plan, of crops and flips (`crops.py`) and of steps on the whole image before
  them (`whole.py`);
- `coordinates.py`: an image whose pixels are their own coordinates goes through the live steps,
  which shows what they did to it;
- `common.py`: which samples are compared, and random states that stay as they were.
"""
