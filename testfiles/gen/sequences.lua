-- Layers of rnn over whole sequences, alone and in a row, and what Lua Torch computes with them in evaluation: one list of records.
--   cd testfiles/gen && th sequences.lua OUT.t7        (needs rnn)
-- A record: name, model (in evaluation mode, cleared), input, output; layers: the layers of torch.nn.LSTM that the model is in PyTorch, 0 where
-- something stands against it.
require 'nn' require 'rnn'
torch.manualSeed(25)
torch.setdefaulttensortype('torch.DoubleTensor')
local all = {}
local function case(name, layers, model, input)
  for _, p in ipairs(model:parameters()) do p:normal(0, 0.4) end
  model:evaluate()
  local output = model:forward(input)
  output = torch.isTensor(output) and output:clone() or nn.utils.recursiveCopy({}, output)
  model:clearState()
  for _, q in ipairs(model:listModules()) do
    if q.forget then q:forget() end
    q.gradWeight, q.gradBias = nil, nil
  end
  all[#all + 1] = {name = name, layers = layers, model = model, input = input, output = output}
end

local T, B = 6, 3
local x = torch.randn(T, B, 5)
local words = torch.Tensor(T, B):apply(function() return torch.random(9) end)
local function chain(...) local m = nn.Sequential() for _, layer in ipairs{...} do m:add(layer) end return m end
local function each(...) return nn.Sequencer(chain(...)) end
local fast = nn.FastLSTM

case('one cell', 1, nn.Sequencer(fast(5, 4)), x)
case('cells in one sequencer', 2, each(fast(5, 4), nn.Dropout(0.3), fast(4, 4), nn.Linear(4, 2)), x)
case('sequencers in a row', 2, chain(nn.Sequencer(fast(5, 4)), nn.Dropout(0.3), nn.Sequencer(fast(4, 4)), nn.Sequencer(nn.Linear(4, 2))), x)
case('log softmax of each step', 1, each(fast(5, 4), nn.Linear(4, 2), nn.LogSoftMax()), x)
case('words', 1, chain(nn.LookupTable(9, 5), nn.Sequencer(fast(5, 4)), nn.Select(1, -1), nn.Linear(4, 2), nn.LogSoftMax()), words)
case('another size', 2, each(fast(5, 4), fast(4, 3)), x)
case('whole sequences', 3, chain(nn.SeqLSTM(5, 4), nn.Dropout(0.2), nn.SeqLSTM(4, 4), nn.Dropout(0.2), nn.SeqLSTM(4, 4), nn.Sequencer(nn.Linear(4, 3))), x)
case('two dropouts', 3, chain(nn.SeqLSTM(5, 4), nn.Dropout(0.2), nn.SeqLSTM(4, 4), nn.Dropout(0.4), nn.SeqLSTM(4, 4)), x)
case('remembers', 2, chain(nn.SeqLSTM(5, 4):remember('both'), nn.SeqLSTM(4, 4):remember('both')), x)
case('peepholes', 0, nn.Sequencer(nn.LSTM(5, 4)), x)
case('zeros', 0, nn.Sequencer(fast(5, 4):maskZero(1)), x)
case('a list', 0, chain(nn.SplitTable(1), nn.Sequencer(fast(5, 4)), nn.SelectTable(-1)), x)
case('another cell', 0, nn.Sequencer(nn.GRU(5, 4)), x)
case('a cell that remembers', 0, nn.Sequencer(fast(5, 4)):remember('both'), x)
case('normalized', 0, each(fast(5, 4), nn.BatchNormalization(4)), x)
local once = fast(4, 4)
case('shared', 0, chain(nn.Sequencer(nn.Linear(5, 4)), nn.Sequencer(once), nn.Sequencer(once)), x)
case('inside', 4, chain(nn.SeqLSTM(5, 4), nn.SeqLSTM(4, 4), chain(nn.SeqLSTM(4, 3), nn.SeqLSTM(3, 3), nn.Sequencer(nn.Linear(3, 2))), nn.Tanh()), x)
local tied = nn.Sequencer(fast(4, 4))
case('tied', 0, chain(nn.Sequencer(nn.Linear(5, 4)), tied, tied:clone('weight', 'bias')), x)
local padded, steps = x:clone(), {}
padded[1][2]:zero() padded[2][2]:zero() padded[2][3]:zero() padded[5][1]:zero()
for t = 1, T do steps[t] = padded[t]:clone() end
local function mask(layer) return nn.MaskZero(layer, 1, true) end
case('masked outputs', 0, each(mask(fast(5, 4)), nn.Dropout(0.3), mask(nn.Linear(4, 2)), mask(nn.LogSoftMax())), padded)
case('a list of masked outputs', 0, each(mask(fast(5, 4)), mask(fast(4, 4)), mask(nn.Linear(4, 2)), mask(nn.LogSoftMax())), steps)
case('a list of cells', 3, chain(nn.Sequencer(fast(5, 4)), each(fast(4, 4), fast(4, 4), nn.Linear(4, 2))), steps)
case('a list and its last', 1, chain(nn.Sequencer(fast(5, 4)), nn.ConcatTable():add(nn.FlattenTable()):add(nn.SelectTable(-1)), nn.FlattenTable()), steps)
case('a list changed in place', 0, chain(nn.Sequencer(fast(5, 4)), nn.MapTable(nn.ReLU(true))), steps)
torch.save(arg[1] or 'sequences.t7', all)
