"""A model as tensors of a job: parameters and their memory, and which part of the model this rank holds."""
