"""One run: threads and queues from source to result folder, Ctrl-C, and what the process uses."""
