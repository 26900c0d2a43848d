"""What is learned from: batches, views, replay, and what is read from a disk."""
