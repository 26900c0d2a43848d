"""What each command does. A file here is imported when its command is called, and imports torch
only where it must."""

# Each is a file of its name here, with a function `main`.
COMMANDS = (
    *("demo", "train", "evaluate", "play", "inspect", "export", "sweep", "compare", "reproduce"),
    *("results", "plot", "report", "bench", "doctor", "methods", "tasks"),
)
