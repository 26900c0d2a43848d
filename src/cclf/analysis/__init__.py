"""Statistics, tables and figures of run folders and results files. This package does not import
torch, so it also works where torch is not installed."""
