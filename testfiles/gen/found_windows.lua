-- Windows that lie partly or wholly behind the input: what Lua Torch computes there, as one list of records.
--   th found_windows.lua OUT.t7
-- Poolings in ceil mode whose stride is larger than their kernel, and dilated convolutions with a stride of inputs that
-- are smaller than the kernel. Largest elements are not run backward: with an empty window Lua writes outside memory.
require 'nn'
torch.setdefaulttensortype('torch.DoubleTensor') torch.manualSeed(17) torch.setnumthreads(1)
local R, list = torch.random, {}
local function ceiled(m) m.ceil_mode = true return m end
local function record(m, x)
  local e, t = m:clone(), m:clone()
  e:evaluate() t:training()
  local ok, out = pcall(function() return e:forward(x:clone()) end)
  if not ok then return end
  local r = {model = m:clone(), input = x, output = out:clone(), trainOutput = t:forward(x):clone(), text = tostring(m)}
  if not torch.typename(m):find('Max') then
    t:zeroGradParameters()
    r.gradOutput = torch.randn(out:size())
    r.gradInput = t:backward(x, r.gradOutput):clone()
    r.gradParameters = t:parameters() and {t.gradWeight:clone(), t.gradBias:clone()} or {}
  end
  list[#list + 1] = r
end
for i = 1, 14 do
  local kh, kw, dh, dw = R(1, 2), R(1, 3), R(2, 4), R(2, 4)
  record(ceiled(nn.SpatialAveragePooling(kw, kh, dw, dh)), torch.randn(2, 1, R(4, 8), R(4, 8)))
  record(ceiled(nn.SpatialMaxPooling(kw, kh, dw, dh)), torch.randn(2, R(4, 8), R(4, 8)))
  record(ceiled(nn.SpatialDilatedMaxPooling(kw, kh, dw + 2, dh + 2, 0, 0, R(1, 2), R(1, 2))), torch.randn(1, 1, R(5, 8), R(5, 8)))
  record(ceiled(nn.VolumetricMaxPooling(R(1, 2), kw, kh, R(1, 3), dw, dh)), torch.randn(1, 1, R(4, 6), R(4, 6), R(4, 6)))
  record(nn.SpatialDilatedConvolution(1, 2, R(2, 3), R(2, 3), R(2, 3), R(2, 3), R(0, 1), R(0, 1), R(2, 3), R(2, 3)), torch.randn(1, 1, R(3, 6), R(3, 6)))
  record(nn.VolumetricDilatedConvolution(1, 2, R(1, 2), R(2, 3), R(1, 3), R(1, 3), R(2, 3), R(2, 3), 0, 0, R(0, 1), R(2, 3), R(2, 3), R(1, 2)), torch.randn(1, 1, R(2, 4), R(3, 6), R(3, 6)))
end
torch.save(arg[1], list)
