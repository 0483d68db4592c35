"""Made videos with truth: `images` renders them, `features` gives features of known points in place of images."""
