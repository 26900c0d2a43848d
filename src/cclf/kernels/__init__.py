"""Fast ways to compute what `nets.py` and `equations.py` define: each file holds a kernel beside its plain reference."""
