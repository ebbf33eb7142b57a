-- A checkpoint of char-rnn's form that has learned a few sentences by heart: th char_rnn.lua OUT.t7       (needs nngraph and optim)
require 'nn' require 'nngraph' require 'optim'
local TEXT = ([[
the quick brown fox jumps over the lazy dog. a storage is a row of numbers, and a tensor is a view of it.
the state of a cell is carried from letter to letter. what was learned in lua is not lost in python.
]]):gsub('\n', ' ')
local SIZE, LENGTH, EPOCHS = 32, 50, 1500
torch.manualSeed(2026)
torch.setdefaulttensortype('torch.FloatTensor')
torch.setnumthreads(1)

local hot, parent = torch.class('OneHot', 'nn.Module')
function hot:__init(outputSize) parent.__init(self) self.outputSize = outputSize self._eye = torch.eye(outputSize) end
function hot:updateOutput(input) self.output = self._eye:index(1, input:long()) return self.output end
function hot:updateGradInput(input) self.gradInput:resizeAs(input):zero() return self.gradInput end

local vocab, count = {}, 0
local letters = {}
for c in TEXT:gmatch('.') do letters[c] = true end
local sorted = {} for c in pairs(letters) do sorted[#sorted + 1] = c end table.sort(sorted)
for i, c in ipairs(sorted) do vocab[c] = i count = i end

local x, c, h = nn.Identity()(), nn.Identity()(), nn.Identity()()
local i2h = nn.Linear(count, 4 * SIZE)(OneHot(count)(x)):annotate{name = 'i2h_1'}
local h2h = nn.Linear(SIZE, 4 * SIZE)(h):annotate{name = 'h2h_1'}
local n1, n2, n3, n4 = nn.SplitTable(2)(nn.Reshape(4, SIZE)(nn.CAddTable()({i2h, h2h}))):split(4)
local next_c = nn.CAddTable()({nn.CMulTable()({nn.Sigmoid()(n2), c}), nn.CMulTable()({nn.Sigmoid()(n1), nn.Tanh()(n4)})})
local next_h = nn.CMulTable()({nn.Sigmoid()(n3), nn.Tanh()(next_c)})
local out = nn.LogSoftMax()(nn.Linear(SIZE, count)(next_h):annotate{name = 'decoder'})
local rnn = nn.gModule({x, c, h}, {next_c, next_h, out})
local criterion = nn.ClassNLLCriterion()

local numbers = torch.FloatTensor(#TEXT) for i = 1, #TEXT do numbers[i] = vocab[TEXT:sub(i, i)] end
local weights, grads = rnn:getParameters()
weights:uniform(-0.08, 0.08)
for _, node in ipairs(rnn.forwardnodes) do -- as char-rnn does: the gates that keep start open
  if node.data.annotations.name == 'i2h_1' then node.data.module.bias[{{SIZE + 1, 2 * SIZE}}]:fill(1) end
end
local clones = {}
for t = 1, LENGTH do clones[t] = {rnn:clone('weight', 'bias', 'gradWeight', 'gradBias'), criterion:clone()} end
local state, loss = {learningRate = 5e-3}
local carried, place = {torch.zeros(1, SIZE), torch.zeros(1, SIZE)}, 1
local function pass()
  grads:zero()
  if place == 1 then carried = {torch.zeros(1, SIZE), torch.zeros(1, SIZE)} end
  local last, states, scores = math.min(LENGTH, #TEXT - place), {[0] = carried}, {}
  loss = 0
  for t = 1, last do
    local o = clones[t][1]:forward({numbers:narrow(1, place + t - 1, 1), states[t - 1][1], states[t - 1][2]})
    states[t], scores[t] = {o[1], o[2]}, o[3]
    loss = loss + clones[t][2]:forward(o[3], numbers:narrow(1, place + t, 1)) / last
  end
  local d = {torch.zeros(1, SIZE), torch.zeros(1, SIZE)}
  for t = last, 1, -1 do
    local g = clones[t][2]:backward(scores[t], numbers:narrow(1, place + t, 1)):div(last)
    local b = clones[t][1]:backward({numbers:narrow(1, place + t - 1, 1), states[t - 1][1], states[t - 1][2]}, {d[1], d[2], g})
    d = {b[2], b[3]}
  end
  carried = {states[last][1]:clone(), states[last][2]:clone()}
  grads:clamp(-5, 5)
  place = place + last
  if place >= #TEXT then place = 1 end
  return loss, grads
end
local losses = {}
for i = 1, EPOCHS do
  if i == EPOCHS / 2 then state.learningRate = 2e-3 end
  optim.rmsprop(function() return pass() end, weights, state)
  if i % 100 == 0 then losses[i] = loss print(i, loss) end
end
rnn:clearState()
for _, m in ipairs(rnn:listModules()) do m.gradWeight, m.gradBias = nil, nil end
for _, node in ipairs(rnn.forwardnodes) do
  local notes = node.data.annotations
  notes._debugLabel = notes._debugLabel and notes._debugLabel:gsub('%[[^%]]*/', '[') -- no folders of this machine
end
torch.save(arg[1], {protos = {rnn = rnn, criterion = criterion}, vocab = vocab, type = 'lstm', i = EPOCHS, train_losses = losses,
  opt = {rnn_size = SIZE, num_layers = 1, model = 'lstm', seq_length = LENGTH, dropout = 0}})
