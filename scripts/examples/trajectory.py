"""The camera's path from above; matplotlib draws it by plt.plot(x, z): trajectory.py OUT"""

import sys

import stream_recon as sr

x, _, z = sr.open_result(sys.argv[1]).trajectory.positions.T
print(*(f"{right:.3f} {ahead:.3f}" for right, ahead in zip(x, z, strict=True)), sep="\n")
