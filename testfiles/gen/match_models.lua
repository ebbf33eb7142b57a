-- match_models.lua OUT.t7 [SEED]: architectures that people have in PyTorch too, run by Lua Torch 7.
-- OUT.t7 is one table: name -> {module=, input=, output=}, in evaluate mode.
require "torch"; require "nn"; require "nngraph"; require "rnn"
local out, seed = assert(arg[1]), tonumber(arg[2] or 11)
torch.manualSeed(seed); torch.setdefaulttensortype('torch.FloatTensor')
local cases = {}

local function conv(ni, no, k, s)
   return nn.SpatialConvolution(ni, no, k, k, s or 1, s or 1, (k - 1) / 2, (k - 1) / 2):noBias()
end
local norm = nn.SpatialBatchNormalization
local function shortcut(ni, no, s)
   return ni == no and s == 1 and nn.Identity() or nn.Sequential():add(conv(ni, no, 1, s)):add(norm(no))
end
local function basic(ni, no, s)
   return nn.Sequential():add(conv(ni, no, 3, s)):add(norm(no)):add(nn.ReLU(true)):add(conv(no, no, 3)):add(norm(no))
end
local function bottleneck(ni, no, s)
   local n = no / 4
   return nn.Sequential():add(conv(ni, n, 1)):add(norm(n)):add(nn.ReLU(true)):add(conv(n, n, 3, s)):add(norm(n)):add(nn.ReLU(true))
      :add(conv(n, no, 1)):add(norm(no))
end
-- As in fb.resnet.torch: a ConcatTable of the branch and the shortcut, then their sum.
local function resnet(branch, widths, swapped)
   local net = nn.Sequential():add(conv(3, 4, 3)):add(norm(4)):add(nn.ReLU(true))
   local ni = 4
   for stage, no in ipairs(widths) do
      local layer = nn.Sequential()
      for number = 1, 2 do
         local s = number == 1 and stage > 1 and 2 or 1
         local both = nn.ConcatTable()
         if swapped then both:add(shortcut(ni, no, s)):add(branch(ni, no, s)) else both:add(branch(ni, no, s)):add(shortcut(ni, no, s)) end
         layer:add(nn.Sequential():add(both):add(nn.CAddTable(true)):add(nn.ReLU(true)))
         ni = no
      end
      net:add(layer)
   end
   return net:add(nn.SpatialAveragePooling(4, 4)):add(nn.View(-1):setNumInputDims(3)):add(nn.Linear(ni, 5))
end
local function images(n) return function() return torch.randn(n, 3, 16, 16) end end

cases.resnet = {function() return resnet(basic, {4, 8, 8}) end, images(2)}
cases.resnet_swapped = {function() return resnet(basic, {4, 8, 8}, true) end, images(2)}
cases.resnet_bottleneck = {function() return resnet(bottleneck, {8, 16, 16}) end, images(2)}
cases.resnet_graph = {function()
   local x = nn.Identity()()
   local function chain(seq, node) for _, m in ipairs(seq.modules or {}) do node = m(node) end; return node end
   local node, ni = nn.ReLU(true)(norm(4)(conv(3, 4, 3)(x))), 4
   for stage, no in ipairs{4, 8, 8} do
      for number = 1, 2 do
         local s = number == 1 and stage > 1 and 2 or 1
         local short = chain(shortcut(ni, no, s), node)
         node = nn.ReLU(true)(nn.CAddTable()({short, chain(basic(ni, no, s), node)}))
         ni = no
      end
   end
   node = nn.Linear(ni, 5)(nn.View(-1):setNumInputDims(3)(nn.SpatialAveragePooling(4, 4)(node)))
   return nn.gModule({x}, {node})
end, images(2)}
cases.vgg = {function()
   local net, ni = nn.Sequential(), 3
   for _, no in ipairs{4, 'M', 4, 'M', 6, 6, 'M'} do
      if no == 'M' then net:add(nn.SpatialMaxPooling(2, 2, 2, 2)) else
         net:add(nn.SpatialConvolution(ni, no, 3, 3, 1, 1, 1, 1)):add(nn.ReLU(true)); ni = no
      end
   end
   return net:add(nn.View(-1):setNumInputDims(3)):add(nn.Linear(6 * 2 * 2, 8)):add(nn.ReLU(true)):add(nn.Dropout(0.5))
      :add(nn.Linear(8, 8)):add(nn.ReLU(true)):add(nn.Dropout(0.5)):add(nn.Linear(8, 5))
end, images(2)}
-- Nothing but convolutions, as in a fully convolutional network.
cases.all_conv = {function()
   return nn.Sequential():add(nn.SpatialConvolution(3, 6, 3, 3, 2, 2, 1, 1)):add(nn.ReLU(true)):add(nn.SpatialConvolution(6, 7, 8, 8))
      :add(nn.ReLU(true)):add(nn.SpatialConvolution(7, 5, 1, 1)):add(nn.View(-1):setNumInputDims(3))
end, images(2)}
cases.lstm = {function()
   return nn.Sequential():add(nn.LookupTable(7, 4)):add(nn.SeqLSTM(4, 5)):add(nn.SeqLSTM(5, 5)):add(nn.Bottle(nn.Linear(5, 7)))
end, function() return torch.Tensor{{1, 2}, {5, 7}, {3, 3}} end}
cases.same_layers = {function()
   return nn.Sequential():add(nn.Linear(4, 6)):add(nn.Tanh()):add(nn.Linear(6, 6)):add(nn.Tanh()):add(nn.Linear(6, 3)):add(nn.Tanh())
      :add(nn.Linear(3, 6)):add(nn.Tanh()):add(nn.Linear(6, 6))
end, function() return torch.randn(2, 4) end}

local saved = {}
for name, case in pairs(cases) do
   local module, input = case[1](), case[2]()
   for _, m in ipairs(module:listModules()) do
      if m.running_mean then
         m.running_mean:normal(); m.running_var:uniform(0.5, 2); m.weight:uniform(0.5, 2); m.bias:normal()
      end
   end
   module:evaluate()
   local output = module:forward(input):clone()
   saved[name] = {module = module:clearState(), input = input, output = output}
end
torch.save(out, saved)
