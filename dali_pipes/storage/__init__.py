"""Where encoded images lie: files, parts of tars and TFRecords, and local copies of remote ones."""
