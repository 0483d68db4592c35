"""Back end during the stream: tracker, local and global bundle adjustment, loop closure."""
