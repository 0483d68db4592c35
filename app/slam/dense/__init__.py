"""Dense multi-view stereo: depth maps of keyframes with known poses, about the network's depth.

`stereo.DenseStereo` takes keyframes in order and gives their dense depth. Each map is found by a plane sweep about the
network's depth (`sweep`), confirmed by neighbouring maps (`consistency`), and fused with the network's (`fusion`).
All steps run on numpy and OpenCV, or on torch on a GPU (`arrays`).
"""
