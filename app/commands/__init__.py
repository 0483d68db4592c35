"""What the commands do, once their options are parsed: one file a word."""
