-- Small networks with the shapes of well-known ones, and what Lua Torch computes with them: architectures.t7.
--   th gen/architectures.lua OUT.t7
require 'torch'
require 'nn'
require 'nngraph'

torch.manualSeed(20)
torch.setdefaulttensortype('torch.FloatTensor')

local cases = {}

-- Batch normalization gets running statistics that are not those of a new layer.
local function add(name, module, input)
   for _, layer in ipairs(module:listModules()) do
      if layer.running_mean then
         layer.running_mean:uniform(-0.2, 0.2)
         layer.running_var:uniform(0.5, 1.5)
         if layer.weight then layer.weight:uniform(0.5, 1.5); layer.bias:uniform(-0.2, 0.2) end
      end
   end
   module:evaluate()
   local output = module:forward(input)
   local function copy(value)
      if torch.isTensor(value) then return value:clone() end
      local copied = {}
      for key, inner in pairs(value) do copied[key] = copy(inner) end
      return copied
   end
   output = copy(output)
   module:clearState()
   cases[name] = {module = module, input = input, output = output}
end

local function conv(inputs, outputs, size, stride, pad)
   return nn.SpatialConvolution(inputs, outputs, size, size, stride or 1, stride or 1, pad or 0, pad or 0)
end

-- Residual networks: basic blocks and bottlenecks, shortcuts of all three kinds.
local function shortcut(kind, inputs, outputs, stride)
   if kind == 'C' or (kind == 'B' and inputs ~= outputs) then
      return nn.Sequential():add(conv(inputs, outputs, 1, stride)):add(nn.SpatialBatchNormalization(outputs))
   elseif inputs ~= outputs then
      return nn.Sequential():add(nn.SpatialAveragePooling(1, 1, stride, stride))
         :add(nn.Concat(2):add(nn.Identity()):add(nn.MulConstant(0)))
   end
   return nn.Identity()
end

local function basic(kind, inputs, outputs, stride)
   local body = nn.Sequential()
      :add(conv(inputs, outputs, 3, stride, 1)):add(nn.SpatialBatchNormalization(outputs)):add(nn.ReLU(true))
      :add(conv(outputs, outputs, 3, 1, 1)):add(nn.SpatialBatchNormalization(outputs))
   return nn.Sequential():add(nn.ConcatTable():add(body):add(shortcut(kind, inputs, outputs, stride)))
      :add(nn.CAddTable(true)):add(nn.ReLU(true))
end

local function bottleneck(kind, inputs, width, stride)
   local body = nn.Sequential()
      :add(conv(inputs, width, 1)):add(nn.SpatialBatchNormalization(width)):add(nn.ReLU(true))
      :add(conv(width, width, 3, stride, 1)):add(nn.SpatialBatchNormalization(width)):add(nn.ReLU(true))
      :add(conv(width, width * 4, 1)):add(nn.SpatialBatchNormalization(width * 4))
   return nn.Sequential():add(nn.ConcatTable():add(body):add(shortcut(kind, inputs, width * 4, stride)))
      :add(nn.CAddTable(true)):add(nn.ReLU(true))
end

for _, kind in ipairs{'A', 'B', 'C'} do
   local net = nn.Sequential():add(conv(3, 4, 7, 2, 3)):add(nn.SpatialBatchNormalization(4)):add(nn.ReLU(true))
      :add(nn.SpatialMaxPooling(3, 3, 2, 2, 1, 1))
      :add(nn.Sequential():add(basic(kind, 4, 4, 1)):add(basic(kind, 4, 4, 1)))
      :add(nn.Sequential():add(basic(kind, 4, 8, 2)):add(basic(kind, 8, 8, 1)))
      :add(nn.Sequential():add(basic(kind, 8, 16, 2)):add(basic(kind, 16, 16, 1)))
      :add(nn.SpatialAveragePooling(2, 2, 1, 1)):add(nn.View(16):setNumInputDims(3)):add(nn.Linear(16, 5))
   add('resnet_basic_' .. kind, net, torch.randn(2, 3, 32, 32))
end
do
   local net = nn.Sequential():add(conv(3, 4, 7, 2, 3)):add(nn.SpatialBatchNormalization(4)):add(nn.ReLU(true))
      :add(nn.Sequential():add(bottleneck('B', 4, 2, 1)):add(bottleneck('B', 8, 2, 1)):add(bottleneck('B', 8, 2, 1)))
      :add(nn.Sequential():add(bottleneck('B', 8, 4, 2)):add(bottleneck('B', 16, 4, 1)))
      :add(nn.SpatialAveragePooling(4, 4, 1, 1)):add(nn.View(-1):setNumInputDims(3)):add(nn.Linear(16, 5))
   add('resnet_bottleneck', net, torch.randn(2, 3, 16, 16))
end
do -- before the activation, with the shortcut taken behind the first normalization, which changes it in place
   local function block(inputs, outputs, stride, both)
      local body = nn.Sequential()
      if not both then body:add(nn.SpatialBatchNormalization(inputs)):add(nn.ReLU(true)) end
      body:add(conv(inputs, outputs, 3, stride, 1)):add(nn.SpatialBatchNormalization(outputs)):add(nn.ReLU(true))
         :add(conv(outputs, outputs, 3, 1, 1))
      local net = nn.Sequential()
      if both then net:add(nn.SpatialBatchNormalization(inputs)):add(nn.ReLU(true)) end
      return net:add(nn.ConcatTable():add(body):add(both and conv(inputs, outputs, 1, stride) or nn.Identity()))
         :add(nn.CAddTable())
   end
   local net = nn.Sequential():add(conv(3, 4, 3, 1, 1)):add(block(4, 8, 1, true)):add(block(8, 8, 1))
      :add(block(8, 16, 2, true)):add(block(16, 16, 1)):add(nn.SpatialBatchNormalization(16)):add(nn.ReLU(true))
      :add(nn.SpatialAveragePooling(4, 4)):add(nn.View(16)):add(nn.Linear(16, 3))
   add('wide_resnet', net, torch.randn(2, 3, 8, 8))
end

-- Inception: branches side by side.
do
   local function inception(inputs, a, b, c, d)
      return nn.Concat(2)
         :add(nn.Sequential():add(conv(inputs, a, 1)):add(nn.ReLU(true)))
         :add(nn.Sequential():add(conv(inputs, b, 1)):add(nn.ReLU(true)):add(conv(b, b, 3, 1, 1)):add(nn.ReLU(true)))
         :add(nn.Sequential():add(conv(inputs, c, 1)):add(nn.ReLU(true)):add(conv(c, c, 5, 1, 2)):add(nn.ReLU(true)))
         :add(nn.Sequential():add(nn.SpatialMaxPooling(3, 3, 1, 1, 1, 1)):add(conv(inputs, d, 1)):add(nn.ReLU(true)))
   end
   local features = nn.Sequential():add(conv(3, 4, 3, 1, 1)):add(nn.ReLU(true)):add(nn.SpatialMaxPooling(2, 2, 2, 2):ceil())
      :add(inception(4, 2, 3, 2, 1)):add(inception(8, 4, 5, 4, 3))
   local main = nn.Sequential():add(inception(16, 2, 2, 2, 2)):add(nn.SpatialAveragePooling(5, 5, 1, 1))
      :add(nn.View(8):setNumInputDims(3)):add(nn.Dropout(0.4)):add(nn.Linear(8, 4)):add(nn.LogSoftMax())
   local aux = nn.Sequential():add(nn.SpatialAveragePooling(5, 5, 1, 1)):add(nn.View(16):setNumInputDims(3))
      :add(nn.Linear(16, 4)):add(nn.LogSoftMax())
   add('inception', nn.Sequential():add(features):add(nn.Concat(2):add(main):add(aux)), torch.randn(2, 3, 9, 9))
   add('two_heads', nn.Sequential():add(features:clone()):add(nn.ConcatTable():add(main:clone()):add(aux:clone())),
       torch.randn(2, 3, 9, 9))
end
do -- features in two halves, as AlexNet for two GPUs
   local half = nn.Sequential():add(conv(3, 4, 5, 2, 2)):add(nn.Threshold(0, 1e-6)):add(nn.SpatialCrossMapLRN(5, 1e-4, 0.75))
      :add(nn.SpatialMaxPooling(2, 2, 2, 2))
   local halves = nn.Concat(2):add(half):add(half:clone())
   halves:get(2):reset()
   local head = nn.Sequential():add(nn.View(8 * 4 * 4)):add(nn.Dropout(0.5)):add(nn.Linear(128, 6))
      :add(nn.Threshold(0, 1e-6)):add(nn.Linear(6, 3)):add(nn.LogSoftMax())
   add('alexnet', nn.Sequential():add(halves):add(head), torch.randn(2, 3, 16, 16))
end

-- Dense blocks: every layer sees all before it.
do
   local net = nn.Sequential():add(conv(3, 4, 3, 1, 1))
   for k = 0, 2 do
      local layer = nn.Sequential():add(nn.SpatialBatchNormalization(4 + 2 * k)):add(nn.ReLU(true)):add(conv(4 + 2 * k, 2, 3, 1, 1))
      net:add(nn.ConcatTable():add(nn.Identity()):add(layer)):add(nn.JoinTable(2))
   end
   add('densenet', net:add(nn.SpatialAveragePooling(6, 6)):add(nn.Reshape(10)):add(nn.Linear(10, 3)), torch.randn(2, 3, 6, 6))
end

-- Encoders and decoders.
do
   local pool = nn.SpatialMaxPooling(2, 2, 2, 2)
   local function enet(inputs, outputs)
      local body = nn.Sequential():add(conv(inputs, 2, 1)):add(nn.PReLU(2)):add(conv(2, outputs, 3, 1, 1)):add(nn.SpatialDropout(0.1))
      return nn.Sequential():add(nn.ConcatTable():add(nn.Identity()):add(body)):add(nn.CAddTable()):add(nn.PReLU(outputs))
   end
   local down = nn.Sequential():add(nn.ConcatTable():add(conv(4, 4, 3, 2, 1)):add(pool)):add(nn.CAddTable()):add(nn.PReLU())
   local net = nn.Sequential():add(conv(3, 4, 3, 1, 1)):add(down):add(enet(4, 4)):add(enet(4, 4))
      :add(nn.Sequential():add(nn.ConcatTable():add(nn.Sequential():add(conv(4, 4, 1)):add(nn.SpatialMaxUnpooling(pool)))
           :add(nn.SpatialFullConvolution(4, 4, 3, 3, 2, 2, 1, 1, 1, 1))):add(nn.CAddTable()))
      :add(conv(4, 2, 1))
   add('enet', net, torch.randn(2, 3, 8, 8))
end
do
   local input = - nn.Identity()
   local function down(node, inputs, outputs)
      return node - nn.LeakyReLU(0.2, true) - conv(inputs, outputs, 4, 2, 1) - nn.SpatialBatchNormalization(outputs)
   end
   local function up(node, inputs, outputs)
      return node - nn.ReLU(true) - nn.SpatialFullConvolution(inputs, outputs, 4, 4, 2, 2, 1, 1)
         - nn.SpatialBatchNormalization(outputs) - nn.Dropout(0.5)
   end
   local e1 = input - conv(3, 4, 4, 2, 1)
   local e2 = down(e1, 4, 8)
   local e3 = down(e2, 8, 8)
   local d1 = {up(e3, 8, 8), e2} - nn.JoinTable(2)
   local d2 = {up(d1, 16, 4), e1} - nn.JoinTable(2)
   local out = d2 - nn.ReLU(true) - nn.SpatialFullConvolution(8, 3, 4, 4, 2, 2, 1, 1) - nn.Tanh()
   add('pix2pix', nn.gModule({input}, {out}), torch.randn(2, 3, 16, 16))
end
do
   local function residual(inputs, outputs)
      local net = nn.Sequential():add(nn.SpatialBatchNormalization(inputs)):add(nn.ReLU(true)):add(conv(inputs, outputs, 3, 1, 1))
      local skip = inputs == outputs and nn.Identity() or conv(inputs, outputs, 1)
      return nn.Sequential():add(nn.ConcatTable():add(net):add(skip)):add(nn.CAddTable(true))
   end
   local function hourglass(depth, node)
      local upper = residual(4, 4)(node)
      local lower = residual(4, 4)(nn.SpatialMaxPooling(2, 2, 2, 2)(node))
      lower = depth > 1 and hourglass(depth - 1, lower) or residual(4, 4)(lower)
      return nn.CAddTable()({upper, nn.SpatialUpSamplingNearest(2)(residual(4, 4)(lower))})
   end
   local input = nn.Identity()()
   local start = residual(3, 4)(input)
   local first = hourglass(2, start)
   local score1 = conv(4, 2, 1)(first):annotate{name = 'score'}
   local next = nn.CAddTable()({start, conv(4, 4, 1)(first), conv(2, 4, 1)(score1)})
   local score2 = conv(4, 2, 1)(hourglass(2, next))
   add('hourglass', nn.gModule({input}, {score1, score2}), torch.randn(2, 3, 8, 8))
end
do -- fast style transfer
   local function residual(width)
      local body = nn.Sequential():add(conv(width, width, 3)):add(nn.SpatialBatchNormalization(width)):add(nn.ReLU(true))
         :add(conv(width, width, 3)):add(nn.SpatialBatchNormalization(width))
      local cut = nn.SpatialZeroPadding(-2, -2, -2, -2)
      return nn.Sequential():add(nn.ConcatTable():add(body):add(cut)):add(nn.CAddTable())
   end
   local net = nn.Sequential():add(nn.SpatialReflectionPadding(6, 6, 6, 6)):add(conv(3, 4, 3, 1, 1)):add(nn.SpatialBatchNormalization(4))
      :add(nn.ReLU(true)):add(residual(4)):add(residual(4)):add(nn.SpatialFullConvolution(4, 4, 3, 3, 2, 2, 1, 1, 1, 1))
      :add(nn.ReLU(true)):add(conv(4, 3, 3, 1, 1)):add(nn.Tanh()):add(nn.MulConstant(150))
   add('style', net, torch.randn(1, 3, 12, 12))
end

-- Several inputs, shared weights, nested graphs.
do
   local tower = nn.Sequential():add(conv(1, 3, 3)):add(nn.ReLU()):add(nn.SpatialMaxPooling(2, 2)):add(nn.View(-1):setNumInputDims(3))
      :add(nn.Linear(27, 4))
   local net = nn.Sequential():add(nn.ParallelTable():add(tower):add(tower:clone('weight', 'bias', 'gradWeight', 'gradBias'))
      :add(tower:clone('weight', 'bias', 'gradWeight', 'gradBias')))
   local distances = nn.ConcatTable()
      :add(nn.Sequential():add(nn.NarrowTable(1, 2)):add(nn.PairwiseDistance(2)))
      :add(nn.Sequential():add(nn.ConcatTable():add(nn.SelectTable(1)):add(nn.SelectTable(3))):add(nn.PairwiseDistance(2)))
   add('triplet', net:add(distances), {torch.randn(2, 1, 8, 8), torch.randn(2, 1, 8, 8), torch.randn(2, 1, 8, 8)})
end
do
   local function lstm(x, c, h, size)
      local sums = nn.CAddTable()({nn.Linear(size, 4 * size)(x), nn.Linear(size, 4 * size)(h)})
      local gates = nn.Sigmoid()(nn.Narrow(2, 1, 3 * size)(sums))
      local i, f, o = nn.Narrow(2, 1, size)(gates), nn.Narrow(2, size + 1, size)(gates), nn.Narrow(2, 2 * size + 1, size)(gates)
      local new = nn.Tanh()(nn.Narrow(2, 3 * size + 1, size)(sums))
      local cell = nn.CAddTable()({nn.CMulTable()({f, c}), nn.CMulTable()({i, new})})
      return cell, nn.CMulTable()({o, nn.Tanh()(cell)})
   end
   local x = nn.Identity()():annotate{name = 'word'}
   local state = nn.Identity()()
   local embedded = nn.LookupTable(7, 4)(x):annotate{name = 'lookup'}
   local c1, h1, c2, h2 = state:split(4)
   local nc1, nh1 = lstm(embedded, c1, h1, 4)
   local nc2, nh2 = lstm(nn.Dropout(0.3)(nh1), c2, h2, 4)
   local words = nn.LogSoftMax()(nn.Linear(4, 7)(nh2):annotate{name = 'decoder'})
   local net = nn.gModule({x, state}, {nn.Identity()({nc1, nh1, nc2, nh2}), words})
   local state = {torch.randn(3, 4), torch.randn(3, 4), torch.randn(3, 4), torch.randn(3, 4)}
   add('word_lstm', net, {torch.Tensor{1, 5, 7}, state})
end
do
   local function cell()
      local a, b = nn.Identity()(), nn.Identity()()
      return nn.gModule({a, b}, {nn.Tanh()(nn.CAddTable()({nn.Linear(3, 3)(a), nn.Linear(3, 3)(b)}))})
   end
   local one, x, h = cell(), nn.Identity()(), nn.Identity()()
   local first = one({x, h})
   local second = one:clone('weight', 'bias', 'gradWeight', 'gradBias')({x, first})
   local other = cell()({second, first})
   add('unrolled', nn.gModule({x, h}, {second, nn.Linear(3, 2)(other)}), {torch.randn(2, 3), torch.randn(2, 3)})
end
do -- text: windows of several widths, the largest of each
   local convs = nn.ConcatTable()
   for _, width in ipairs{2, 3, 4} do
      convs:add(nn.Sequential():add(nn.TemporalConvolution(5, 4, width)):add(nn.ReLU()):add(nn.Max(2)))
   end
   add('sentences', nn.Sequential():add(nn.LookupTable(9, 5)):add(convs):add(nn.JoinTable(2)):add(nn.Dropout(0.5))
      :add(nn.Linear(12, 2)):add(nn.LogSoftMax()), torch.Tensor(3, 6):random(9))
end
do -- memory: attention over a sequence
   local query, memory = nn.Identity()(), nn.Identity()()
   local scores = nn.Sum(3)(nn.CMulTable()({memory, nn.Replicate(5, 2)(nn.Linear(4, 4)(query))}))
   local weights = nn.Replicate(1, 2)(nn.SoftMax()(scores))
   local read = nn.Select(2, 1)(nn.MM()({weights, memory}))
   add('attention', nn.gModule({query, memory}, {nn.Tanh()(nn.Linear(8, 3)(nn.JoinTable(2)({read, query})))}),
       {torch.randn(2, 4), torch.randn(2, 5, 4)})
end
do -- an autoencoder whose decoder is tied to the encoder, and a module that several Sequentials have
   local encoder, decoder = nn.Linear(6, 6), nn.Linear(6, 6)
   decoder.weight = encoder.weight
   decoder.gradWeight = encoder.gradWeight
   local both = nn.PReLU(6)
   add('tied', nn.Sequential():add(encoder):add(both):add(nn.Sequential():add(nn.Dropout(0.1)):add(both)):add(decoder),
       torch.randn(2, 6))
end

torch.save(arg[1], cases)
