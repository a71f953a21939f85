"""The rungs that `bench/gpu_check` climbs, and how it climbs them. Needs Python 3.9 and nothing else."""
