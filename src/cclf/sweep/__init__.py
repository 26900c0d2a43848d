"""Many runs, each the same call as `cclf train` in a process of its own, on this machine or on a
Ray cluster.

plan.py       what to run, and what came of it
loop.py       works through a plan with a backend; on a deadline or a signal every run is asked to save
local.py      backend: processes here, as many as cores, memory and GPUs allow
cluster.py    backend: a Ray cluster
run_files.py  run folders copied between machines that share no files
child.py      the process of one run, which does not outlive the one that started it
screen.py     the live table
"""
