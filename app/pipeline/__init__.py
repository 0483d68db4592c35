"""One run, from an opened source to a finished result: threads, queues, resume, refinement, metric scale."""
