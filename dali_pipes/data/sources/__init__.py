"""Readers: each kind of source has a file, and gives an `ImageTable`, the images of a manifest.

    what a user names                       kinds.py says which kind it is
      any source                            opening.py
      a folder of class folders             scans.py: folders.py, store_folders.py of a store
      shards (tar, TFRecord)                scans.py: shards.py
      a table of paths and labels           tables.py: csv_tables.py, table_columns.py
      Parquet files that hold the images    hugging_face.py
      an open data set of `datasets`        hugging_face_sets.py
      a JSON file of COCO's form            coco/
      a folder of images and one of masks   masks.py
      a saved manifest                      ../table/saved.py
      a folder in a store with an index     index.py
      a data set of another program         layouts.py names it

`options.py` has the options of all of them, and says which kinds take each. `rows/` turns files and
objects into rows of a manifest, `tree.py` lists what is below a folder, `names.py` says what names
of files and folders mean, and `targets.py` checks objects and masks after the images are known.
"""
