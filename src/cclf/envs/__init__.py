"""Environments: each file adapts one suite to the protocols of `cclf.types`."""
