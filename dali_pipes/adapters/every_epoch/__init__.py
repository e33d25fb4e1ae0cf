"""`from_torch(every_epoch=True)`: the program's own `__getitem__` runs for every item of every
epoch, and its pictures are decoded and transformed by a backend.

`trace` finds out, once, what is the same for all items: the pictures, the steps that each goes
through, and which of them share random numbers. `reader` then runs each item under the recorders of
`from_torch`, in the processes of `dp.load` (adapters/items), and hands over the files that it
opens. `convert` puts both together. `iterable`, `iterated` and `iterable_loader` do the same with
the iterator of an IterableDataset, which has no items by number. `generators` are the random
generators that the program has made itself.
"""
