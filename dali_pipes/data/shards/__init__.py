"""Files that hold many images: tar in the form of WebDataset, TFRecord, and row groups of Parquet.

tar.py, tfrecord.py and parquet.py read the files, remote.py and faults.py talk to object stores,
copies.py keeps local copies, and traffic.py counts what is fetched.
"""
