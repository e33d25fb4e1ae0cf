"""dali-pipes scan and index: summary and picture of a data set, and every file that is not used."""
