"""A job's steps: its sections, the servers' formula for an optimizer, schedules, and the optimizer's state."""
