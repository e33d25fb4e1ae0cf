"""A model over all images of a data set, into a folder of Parquet files that any number of
processes fill and go on with.
"""
