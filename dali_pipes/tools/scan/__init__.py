"""dali-pipes scan and index: a summary of a data set, a picture, and every file that is not used."""
