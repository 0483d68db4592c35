"""A run that another thread, or the progress, may end: cancel.py VIDEO OUT"""

import sys

import stream_recon as sr

cancel = sr.Cancel()
try:
    sr.reconstruct(
        sys.argv[1],
        sys.argv[2],
        cancel=cancel,
        on_progress=lambda step, share: cancel.request() if (share or 0) > 0.1 else print(step, share),
    )
except sr.Cancelled:
    print(sr.open_result(sys.argv[2]), "resume=True continues")
