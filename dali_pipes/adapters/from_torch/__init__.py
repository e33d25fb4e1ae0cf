"""A live PyTorch DataLoader as one of our loaders: its data set, its order, its transform and its
collate function, each read.
"""
