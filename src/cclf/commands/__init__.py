"""What each command does. A file here is imported when its command is called, and imports torch
only where it must."""
