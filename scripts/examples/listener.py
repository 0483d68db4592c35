"""Each result and revision of a run while it goes on: listener.py VIDEO OUT"""

import sys

import stream_recon as sr


class Listener:
    def add(self, result: sr.FrameResult) -> None:
        print(result.index, result.T_world_camera[:3, 3])

    def revise(self, revision: sr.Revision) -> None:
        print(f"{len(revision.frames)} frames moved")


sr.reconstruct(sys.argv[1], sys.argv[2], listeners=[Listener()], mapping="stream", mesh=False, max_frames=12)
