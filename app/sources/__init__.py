"""Videos, image folders, cameras, addresses and recordings as frames."""
