"""What runs a training: loop, evaluation, files, random numbers. Sees protocols only."""
