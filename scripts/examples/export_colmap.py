"""Images, cameras and points for COLMAP and Gaussian splats: export_colmap.py OUT TARGET"""

import sys

import stream_recon as sr

print(sr.open_result(sys.argv[1]).export("colmap", sys.argv[2], frames="all"))
