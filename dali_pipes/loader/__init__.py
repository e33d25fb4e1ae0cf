"""What a user iterates: epochs, resume, bad samples, targets and mixing."""
