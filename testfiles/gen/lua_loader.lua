-- Puts state dicts that lua_loader.py saved into Lua models by loader.lua, and records what the models compute.
--   th lua_loader.lua LOADER.lua WORK.t7 OUT.t7
-- OUT.t7: name → {net = of lua_loading.py, weights=, input=, output=}, or {net=, error = the message}.
require 'nn'
require 'nngraph'
require 'rnn' -- Element-Research's

local loader, cases = dofile(arg[1]), torch.load(arg[2])
local found = {}

local function record(name, net, model, names, options, change)
   local case, given = cases[net], {}
   for key, tensor in pairs(case.weights) do given[key] = tensor end
   local ran, message = pcall(loader.load, model:float(), change and change(given) or given, names, options)
   if not ran then
      found[name] = {net = net, error = message:gsub('^.-: ', '')}
      return
   end
   model:evaluate()
   found[name] = {net = net, weights = case.weights, input = case.input, output = model:forward(case.input):clone()}
end

local function net(plain)
   local first = nn.SpatialConvolution(3, 4, 3, 3)
   if plain then first:noBias() end
   return nn.Sequential():add(first):add(nn.SpatialBatchNormalization(4)):add(nn.ReLU())
      :add(nn.SpatialConvolution(4, 5, 3, 3)):add(nn.SpatialBatchNormalization(5))
      :add(nn.View(-1):setNumInputDims(3)):add(nn.Linear(20, 3))
end

local function names_of(m)
   return {conv1 = m:get(1), bn1 = m:get(2), conv2 = m:get(4), bn2 = m:get(5), fc = m:get(7)}
end

-- a convolution with a bias where PyTorch has none
local m = net()
record('names', 'net', m, names_of(m))

-- modules that say their names
m = net(true)
for name, module in pairs(names_of(m)) do module.name = name end
record('own_names', 'net', m)

-- an old batch normalization keeps 1 / sqrt(variance + eps); this nn reads it only after a conversion
m = net(true)
m:get(2).running_std, m:get(2).running_var = m:get(2).running_var, nil
loader.load(m, cases.net.weights, names_of(m))
m:get(2).running_var = m:get(2).running_std:clone():pow(-2):add(-m:get(2).eps)
m:get(2).running_std = nil
m:float():evaluate()
found.running_std = {net = 'net', weights = cases.net.weights, input = cases.net.input, output = m:forward(cases.net.input):clone()}

-- batch normalizations fused into convolutions
m = nn.Sequential():add(nn.SpatialConvolution(3, 4, 3, 3)):add(nn.ReLU()):add(nn.SpatialConvolution(4, 5, 3, 3))
   :add(nn.View(-1):setNumInputDims(3)):add(nn.Linear(20, 3))
record('fused', 'net', m, {conv1 = {m:get(1), norm = 'bn1'}, conv2 = {m:get(3), norm = 'bn2'}, fc = m:get(5)})

-- an nngraph model by its annotations
local x = nn.Identity()()
local h = nn.SpatialConvolution(3, 4, 3, 3)(x):annotate({name = 'conv1'})
h = nn.ReLU()(nn.SpatialBatchNormalization(4)(h):annotate({name = 'bn1'}))
h = nn.SpatialBatchNormalization(5)(nn.SpatialConvolution(4, 5, 3, 3)(h):annotate({name = 'conv2'})):annotate({name = 'bn2'})
h = nn.Linear(20, 3)(nn.View(-1):setNumInputDims(3)(h)):annotate({name = 'fc'})
record('annotations', 'net', nn.gModule({x}, {h}))

-- places in containers, as in PyTorch's nn.Sequential
record('places', 'steps', nn.Sequential():add(nn.Linear(3, 4)):add(nn.Sequential():add(nn.Tanh()):add(nn.Linear(4, 5))))

m = nn.Sequential():add(nn.Transpose({2, 3})):add(nn.TemporalConvolution(3, 4, 2)):add(nn.Transpose({2, 3}))
record('time', 'time', m, {m:get(2)})
m = nn.Sequential():add(nn.SpatialDepthWiseConvolution(3, 2, 3, 3))
record('depth', 'depth', m)

m = nn.Sequential():add(nn.LookupTable(7, 4)):add(nn.CMul(4)):add(nn.Linear(4, 4)):add(nn.Linear(4, 2))
record('parameter', 'scaled', m, {table = m:get(1), scale = m:get(2), parts = {a = m:get(3), b = m:get(4)}})

-- LSTMs of rnn: gates i f o g with one bias, and i g f o in two linear layers
local one, two = nn.SeqLSTM(3, 4), nn.SeqLSTM(4, 4)
record('seq_lstm', 'lstm', nn.Sequential():add(one):add(two), {rnn = {one, two}})
one, two = nn.FastLSTM(3, 4), nn.FastLSTM(4, 4)
m = nn.Sequential():add(nn.SplitTable(1)):add(nn.Sequencer(one)):add(nn.Sequencer(two))
m:add(nn.MapTable():add(nn.View(1, 2, 4))):add(nn.JoinTable(1))
record('fast_lstm', 'lstm', m, {rnn = {one, two}})
one = nn.SeqLSTM(3, 4)
record('seq_lstm_plain', 'lstm_plain', one, {rnn = one})
one, two = nn.SeqLSTM(3, 4), nn.SeqLSTM(3, 4)
m = nn.Sequential():add(nn.ConcatTable():add(one):add(nn.Sequential():add(nn.SeqReverseSequence(1)):add(two):add(nn.SeqReverseSequence(1))))
m:add(nn.JoinTable(3))
record('seq_lstm_both', 'lstm_both', m, {rnn = {forward = one, backward = two}})
one = nn.SeqLSTMP(3, 4, 2)
record('seq_lstm_projected', 'lstm_projected', one, {rnn = one})

-- char-rnn's cell: two linear layers, gates i f o g
local function char_cell()
   local input = nn.Identity()()
   local h0, c0 = nn.MulConstant(0)(nn.Narrow(2, 1, 1)(input)), nil
   h0 = nn.AddConstant(0.1)(nn.Replicate(4, 2)(nn.Select(2, 1)(h0)))
   c0 = nn.AddConstant(0.1)(h0)
   local i2h, h2h = nn.Linear(3, 16), nn.Linear(4, 16)
   local sums = nn.CAddTable()({i2h(input), h2h(h0)})
   local n1, n2, n3, n4 = nn.SplitTable(2)(nn.Reshape(4, 4)(sums)):split(4)
   local c = nn.CAddTable()({nn.CMulTable()({nn.Sigmoid()(n2), c0}), nn.CMulTable()({nn.Sigmoid()(n1), nn.Tanh()(n4)})})
   return nn.gModule({input}, {nn.CMulTable()({nn.Sigmoid()(n3), nn.Tanh()(c)})}), i2h, h2h
end
local cell, i2h, h2h = char_cell()
record('char_rnn', 'cell', cell, {cell = {i2h = i2h, h2h = h2h, gates = 'ifog'}})

-- what does not fit, all at once
m = net()
local names = names_of(m)
names.fc = nil
record('too_few', 'net', m, names)
m = nn.Sequential():add(nn.Linear(3, 5)):add(nn.Sequential():add(nn.Tanh()):add(nn.Linear(4, 5)))
record('sizes', 'steps', m)
one = nn.SeqGRU(3, 4)
record('gru', 'lstm_plain', one, {rnn = one})
cell, i2h, h2h = char_cell()
record('no_gates', 'cell', cell, {cell = {i2h = i2h, h2h = h2h}})

-- a prefix that the model does not have
local function prefixed(weights)
   local renamed = {}
   for key, tensor in pairs(weights) do renamed['net.' .. key] = tensor end
   return renamed
end
local function steps()
   return nn.Sequential():add(nn.Linear(3, 4)):add(nn.Sequential():add(nn.Tanh()):add(nn.Linear(4, 5)))
end
record('prefix', 'steps', steps(), nil, nil, prefixed)
m = net()
record('prefix_names', 'net', m, names_of(m), nil, prefixed)

-- as many elements in another shape, and memory that two modules share
record('transposed', 'steps', steps(), nil, nil, function(weights) weights['0.weight'] = weights['0.weight']:t():contiguous() end)
record('one_column', 'steps', steps(), nil, nil, function(weights) weights['1.1.weight'] = weights['1.1.weight']:reshape(20, 1) end)
m = nn.Sequential():add(nn.Linear(3, 4)):add(nn.Sequential():add(nn.Tanh()):add(nn.Linear(3, 4)))
m:get(2):get(2):share(m:get(1), 'weight')
record('tied', 'steps', m, nil, nil, function(weights)
   weights['1.1.weight'], weights['1.1.bias'] = weights['0.weight'] + 1, weights['0.bias']
end)

torch.save(arg[3], found)
