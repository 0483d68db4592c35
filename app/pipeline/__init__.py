"""The run: threads and queues from a source to its listeners."""
