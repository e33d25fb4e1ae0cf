"""Files that hold many images: tar in the form of WebDataset, TFRecord, and row groups of Parquet.

tar.py, tfrecord.py and parquet.py read the files. In object stores listing.py finds them and
remote.py fetches their bytes, by store_requests.py; copies.py keeps local copies, and traffic.py
counts what is fetched.
"""
