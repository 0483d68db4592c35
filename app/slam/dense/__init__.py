"""Dense multi-view stereo: depth maps of keyframes with known poses, about the network's depth.

`stereo.DenseStereo` takes keyframes in order and gives their dense depth. Each map is found by plane sweeps about the
network's depth (`sweep`), confirmed by neighbouring maps (`consistency`), and interpolated with the network's
(`interpolation`, `planar`). `config` has the tuned numbers. All steps run on numpy and OpenCV, or on torch on a GPU
(`arrays`, `torch_arrays`).
"""
