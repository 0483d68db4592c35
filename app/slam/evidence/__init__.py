"""Evidence for and against poses and depth, which the online back end and offline refinement share."""
