"""Triangle meshes from depth maps, with textures from the source's images."""
