"""The live viewer: a web server that shows a reconstruction."""
