"""Convolutions. Kernels that Lua keeps as matrices get PyTorch's dimensions. Sources: nn 8726825, cudnn.torch, ccn2."""

from __future__ import annotations

from .layouts import FIRST, LAST, REST, Merge, Permute, Reshape
from .registry import buffer, param, register_layer

BIAS = param("bias")
# (out, in / groups, kH, kW); SpatialConvolutionMM, and nn.SpatialConvolution of February 2015, keep it as a matrix.
KERNEL_2D = param("weight", Reshape((FIRST, REST, "kH", "kW")))
# (out, in / groups, kT, kH, kW); the MM kernels of 2015 are matrices.
KERNEL_3D = param("weight", Reshape((FIRST, REST, "kT", "kH", "kW")))

_NO_PADDING = {"padW": 0.0, "padH": 0.0}
_UNFOLDED = "finput fgradInput ones columns"
_CUDNN = "iSize input_offset output_offset weight_offset workspace buffer autotunerHash"

# torch.nn.Conv2d, and Conv2d(dilation=…).
register_layer(
    "nn.SpatialConvolution",
    "nn.SpatialConvolutionMM",
    "nn.SpatialConvolutionFFT",
    "nn.SpatialConvolutionCuFFT",
    "nn.SpatialBinaryConvolution",
    "nn.SpatialDilatedConvolution",
    "bnn.SpatialConvolution",
    params=(KERNEL_2D, BIAS),
    defaults={**_NO_PADDING, "groups": 1.0, "dilationW": 1.0, "dilationH": 1.0},
    scratch=f"{_UNFOLDED} {_CUDNN}",
)
# The batch is the last dimension of ccn2's tensors, and the output plane that of its kernels.
_CCN2_KERNEL = param("weight", Reshape((REST, "kH", "kH", LAST)), Permute((3, 0, 1, 2)))
register_layer("ccn2.SpatialConvolution", params=(_CCN2_KERNEL, BIAS), defaults={"groups": 1.0, "padding": 0.0})
# cunn of 2013: kernels (in, kH, kW, out).
register_layer(
    "nn.SpatialConvolutionCUDA",
    params=(param("weight", Permute((3, 0, 1, 2))), BIAS),
    defaults={**_NO_PADDING, "padding": 0.0},
)
# Kernels (mult, in, kH, kW) and bias (mult, in), whose outputs are ordered by input plane: Conv2d(groups=in).
register_layer(
    "nn.SpatialDepthWiseConvolution",
    params=(
        param("weight", Reshape((FIRST, REST, "kH", "kW")), Merge((1, 0, 2, 3), (REST, 1, "kH", "kW"))),
        param("bias", Merge((1, 0), (REST,))),
    ),
    defaults=_NO_PADDING,
    scratch=_UNFOLDED,
)
# A kernel for each place of the output, (oH, oW, out, in, kH, kW), which Lua flattens while it computes.
register_layer(
    "nn.SpatialConvolutionLocal",
    params=(
        param("weight", Reshape(("oH", "oW", "nOutputPlane", "nInputPlane", "kH", "kW"))),
        param("bias", Reshape(("nOutputPlane", "oH", "oW"))),
    ),
    defaults=_NO_PADDING,
    scratch=_UNFOLDED,
)
# A kernel for each connection, (connections, kH, kW); the table of connections counts planes from 1.
register_layer(
    "nn.SpatialConvolutionMap",
    "nn.SpatialFullConvolutionMap",
    params=(param("weight"), BIAS, buffer("connTable")),
    scratch=_UNFOLDED,
)
# (in, out / groups, kH, kW): torch.nn.ConvTranspose2d.
register_layer(
    "nn.SpatialFullConvolution",
    params=(KERNEL_2D, BIAS),
    defaults={**_NO_PADDING, "adjW": 0.0, "adjH": 0.0, "groups": 1.0},
    scratch=f"{_UNFOLDED} {_CUDNN} zeroScalar",
)
# One factor and one offset for each plane.
register_layer("nn.SpatialSubSampling", "nn.TemporalSubSampling", params=(param("weight"), BIAS))

# (out, kW * in), the kernel's columns before the features; cuDNN's fields kH and kW mean other things.
# torch.nn.Conv1d has (out, in, kW).
_KERNEL_1D = param("weight", Reshape((FIRST, REST, "inputFrameSize")), Permute((0, 2, 1)))
register_layer(
    "nn.TemporalConvolution",
    "nn.TemporalConvolutionFB",  # fbcunn: (out, kW, in)
    params=(_KERNEL_1D, BIAS),
    defaults={"padH": 0.0},
    scratch=f"{_UNFOLDED} {_CUDNN} buffer oSize",
)
# (in, 1, kW): Conv1d(groups=in).
register_layer(
    "nn.TemporalRowConvolution",
    params=(param("weight", Reshape((FIRST, 1, REST))), BIAS),
    defaults={"featFirst": False},
    scratch=_UNFOLDED,
)

_VOLUME = {**_NO_PADDING, "padT": 0.0, "groups": 1.0}
# torch.nn.Conv3d, and Conv3d(dilation=…).
register_layer(
    "nn.VolumetricConvolution",
    "nn.VolumetricConvolutionMM",
    "nn.VolumetricDilatedConvolution",
    params=(KERNEL_3D, BIAS),
    defaults={**_VOLUME, "dilationT": 1.0, "dilationW": 1.0, "dilationH": 1.0},
    scratch=f"{_UNFOLDED} {_CUDNN}",
)
# (in, out / groups, kT, kH, kW): torch.nn.ConvTranspose3d.
register_layer(
    "nn.VolumetricFullConvolution",
    params=(KERNEL_3D, BIAS),
    defaults={**_VOLUME, "adjT": 0.0, "adjW": 0.0, "adjH": 0.0},
    scratch=f"{_UNFOLDED} {_CUDNN}",
)
