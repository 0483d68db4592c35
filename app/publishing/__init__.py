"""Publishing of poses, depth and points to robots and their tools while a run goes on."""
