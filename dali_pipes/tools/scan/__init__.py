"""What is in a data set: a summary, a picture, and every file that is not used."""
