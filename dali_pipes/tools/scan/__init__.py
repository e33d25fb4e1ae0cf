"""dali-pipes scan and index: the summary of a data set, and every file that is not used."""
