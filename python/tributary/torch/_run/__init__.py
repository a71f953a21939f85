"""A program's run: its jobs, from the first attach to the end, and its loop, with the place where both continue."""
