"""What a trained agent is curious about: one file per base algorithm, each handing over the same `Gallery`."""
