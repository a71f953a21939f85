"""DataLoaders: batches that a DistributedSampler deals out, and loaders of frameworks."""
