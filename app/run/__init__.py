"""One run over a source: threads and queues, tracking quality, masks, guidance, resume."""
