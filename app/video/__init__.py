"""Sources of frames: files, folders of images, cameras and streams; and a frame's way to the network's image."""
