"""Reads run folders and results files. No torch: a laptop without it can draw every figure."""
