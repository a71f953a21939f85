"""A session with the node's worker, and a rank's reports of its rounds."""
