"""dali-pipes predict: runs a model over all images of a data set, into a folder of Parquet files.

Any number of processes share the work, and another number may continue it. See docs/predict.md.
"""
