"""Lazy pictures: any DataLoader, with equal batches, whose pixels are made elsewhere.

A program that somebody else has written runs as it is, in its own workers; only its pixels wait.
This is the way of one picture:

1. **A worker opens it.** `Image.open` returns Pillow's own picture, whose header is read, and notes
   where it comes from: a `Source` knows the file, its size and its times (recipes.py). OpenCV and
   torchvision.io return an array or a tensor that waits in the same way.
2. **The program draws, and calls its transforms.** Each function that is called with what waits is
   a row of one table (steps/): the row says what its result looks like, and the result waits, too.
   A `Recipe` is a source and the notes of what is done to it, with the numbers that the program has
   drawn. It never changes. Functions of libraries are replaced only while pictures wait
   (patching.py). What has no row, or looks at pixels, gets the true ones: they are made by the very
   functions that were noted, and the program goes on as ever (pictures.py, tensors.py, arrays.py).
   What shares memory in the program shares a `Cell` (cells.py), so changes in place are seen.
3. **The program collates.** Its batch holds tensors that wait. It is sent with their recipes, which
   are some hundred bytes each (program.py, parcels.py). A collate function that looks at pixels is
   left to the training process, with the random numbers that it would have had (dry_run.py).
4. **The training process compiles.** A recipe becomes a row of a planned batch of loose images, and
   any backend carries that out, some batches ahead (compiler/). What no backend has a place for was
   made in the worker, as it was noted.
5. **The batch is filled**, compared, and put on its device (finishing.py, loader.py).

So nothing has to be proved of a program: what is not understood runs. There is a net below it
(program.py): a sample that fails while its pictures wait is made once more with true ones, from the
same random state; some samples are made twice, the second time truly, and compared (compared.py);
what a row says of its result is checked when it is made. `explain()` says which share of the
pictures waits, and which lines of the program look at pixels.
"""
