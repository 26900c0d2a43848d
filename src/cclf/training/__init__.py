"""Training of runs: the loop, evaluation, worker processes, CUDA graphs, random numbers. It uses
algorithms and environments only through the protocols of `cclf.types`."""
