"""Declares the two operators that a CUDA build of torchvision expects to find when it is imported without CUDA."""

import importlib.util

if importlib.util.find_spec("torch") is not None:
    import torch

    _library = torch.library.Library("torchvision", "FRAGMENT")
    _library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
