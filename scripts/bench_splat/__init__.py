"""`scripts/bench.py splat`: how good a Gaussian splat trains from an export, beside structure from motion.

`prepare` makes the models, on any machine; `train` trains on them and needs a GPU and gsplat, and nothing of
stream-recon, so that the folder and this package are all that has to be brought to a machine with a GPU.
"""
