"""Many runs, each a `cclf train` in a process of its own, on this machine or on a Ray cluster.

plan.py         the runs, the processes that train them, and how each run ended
scheduler.py    starts jobs with a backend; on a deadline or a signal every run saves and stops
local.py        backend: processes on this machine, as many as cores, memory and GPUs allow
ray_backend.py  backend: tasks on a Ray cluster
child.py        the process of a job; it stops when the process that started it dies
display.py      the live table
"""
