"""A live DataLoader whose pictures wait. The program runs as it is, in its own workers; only the pixels are made elsewhere.

`Image.open` returns a picture that knows its file, size and mode, and notes what is done to it: `crop`, `resize`, `transpose` and
what the libraries do, with the numbers that the program itself has drawn. `to_tensor` returns a `LazyTensor`, `np.array` a `LazyArray`.
Whatever else looks at the pixels gets the true ones: they are made by the very functions that were noted, and the program goes on as
ever. So nothing needs to be proved of the program, and nothing is refused. In the training process the pictures of a batch are handed
to one who makes them together (loader.py; planned.py).

    notes.py     what is noted: sources, recipes, cells
    pictures.py  Pillow          tensors.py  PyTorch          arrays.py  NumPy
    patches.py   what torchvision, albumentations, OpenCV and timm do with them
    loader.py    the DataLoader, its random numbers, and the net below it
    planned.py   recipes as planned batches of dali_pipes

It shows that the idea works, what it costs and where it ends; it is no product.
"""

from dali_pipes.adapters.lazy.loader import LazyLoader as LazyLoader
