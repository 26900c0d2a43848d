"""Replay, augmentations, and copies between host and device."""
