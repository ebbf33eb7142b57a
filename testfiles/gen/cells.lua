-- Recurrent cells, highway layers and attention as published programs build them in nngraph, written again here, and what Lua Torch
-- computes with them over 50 steps whose state is carried: one list of records.
--   cd testfiles/gen && th cells.lua OUT.t7 [FOLDER]       (needs nngraph and rnn; with FOLDER, each record as a file too, and more of them)
--   cd testfiles/gen && th cells.lua OUT.t7 '' gated attend fed_back   (only records of such names, those made on request too: highway_attention.t7)
-- A record: name, model (in evaluation mode), inputs: of the first step; what differs between the steps: steps, by the path of an input ("1", "3.2",
-- "" is the input itself) a tensor with a row for each step, and carry, by the path of an input the path of the output of the step before;
-- outputs, by number of the step: for the first three and the last; and for models without dropout, of the first step in training:
-- trainOutput, gradOutput and gradInput.
require 'nn' require 'nngraph'
require 'rnn.LinearNoBias' -- that file alone: torch-rnn has another nn.LSTM
local OUT, FOLDER, ONLY = arg[1] or 'cells.t7', arg[2] ~= '' and arg[2] or nil, #arg > 2 and {unpack(arg, 3)} or nil
local LAST, B = 50, 2
torch.setnumthreads(1)
local all, count = {}, 0
local function copy(v) if torch.isTensor(v) then return v:clone() end if type(v) ~= 'table' then return v end local t = {} for i, e in ipairs(v) do t[i] = copy(e) end return t end
local function noise(v) if torch.isTensor(v) then return v.new():resize(v:size()):normal() end local t = {} for i, e in ipairs(v) do t[i] = noise(e) end return t end
local function keys(path) local t = {} for key in tostring(path):gmatch('%d+') do t[#t + 1] = tonumber(key) end return t end
local function at(v, path) for _, key in ipairs(keys(path)) do v = v[key] end return v end
local function set(v, path, to) local k = keys(path) if #k == 0 then return to end local inner = v for i = 1, #k - 1 do inner = inner[k[i]] end inner[k[#k]] = to return v end
local function slim(m) m:clearState() for _, q in ipairs(m:listModules()) do q.gradWeight, q.gradBias = nil, nil if torch.type(q) == 'nn.ModuleFromCriterion' then q.output = torch.Tensor(1) end end return m end -- its output must have a place

-- inputs: the first step's, of which `steps` says which differ; `carry` as above
local function case(name, make, inputs, steps, carry, kind, extra)
  local is_asked = false for _, pattern in ipairs(ONLY or {''}) do is_asked = is_asked or name:find(pattern) end
  if not is_asked then return end
  torch.manualSeed(#name * 1000 + name:byte(1) + name:byte(#name))
  torch.setdefaulttensortype(kind or 'torch.FloatTensor')
  local model, r, dropout = make(), {name = name, steps = {}, carry = {}, outputs = {}}, false
  for _, p in ipairs(model:parameters() or {}) do p:normal(0, 0.35) end
  for _, q in ipairs(model:listModules()) do dropout = dropout or torch.type(q) == 'nn.Dropout' end
  inputs = inputs()
  local now = inputs
  r.inputs = copy(inputs)
  for path, draw in pairs(steps or {}) do
    local rows = {} for t = 1, LAST do local row = t == 1 and at(inputs, path) or draw() rows[t] = row:view(1, unpack(row:size():totable())):clone() end
    r.steps[path] = torch.cat(rows, 1)
  end
  for to, from in pairs(carry or {}) do r.carry[to] = from end
  local plain = slim(model:clone())
  for _, q in ipairs(plain:listModules()) do
    for _, node in ipairs(q.forwardnodes or {}) do
      local notes = node.data.annotations
      notes._debugLabel = notes._debugLabel and notes._debugLabel:gsub('%[[^%]]*/', '[') -- no folders of this machine
    end
  end
  plain:evaluate()
  r.model = plain:clone()
  for t = 1, LAST do
    if t > 1 then for path, rows in pairs(r.steps) do now = set(now, path, rows[t]:clone()) end end
    local out = copy(plain:forward(copy(now)))
    if t <= 3 or t == LAST then r.outputs[t] = out end
    for to, from in pairs(r.carry) do now = set(now, to, at(out, from)) end
  end
  if not dropout and not name:find('stateful') then
    local m = model:clone() m:training() m:zeroGradParameters()
    r.trainOutput = copy(m:forward(copy(r.inputs))) r.gradOutput = noise(r.trainOutput)
    local grads = m:backward(copy(r.inputs), copy(r.gradOutput))
    r.gradInput = copy(grads)
  end
  count = count + 1
  if ONLY or not extra then all[#all + 1] = r end
  if FOLDER then torch.save(FOLDER .. '/' .. name .. '.t7', r) end
end
local function double(name, make, inputs, steps, carry, extra) case(name .. '_double', make, inputs, steps, carry, 'torch.DoubleTensor', extra) end

-- Pieces
local function id() return nn.Identity()() end
local function add(...) return nn.CAddTable()({...}) end
local function mul(...) return nn.CMulTable()({...}) end
local function sig(x) return nn.Sigmoid()(x) end
local function tanh(x) return nn.Tanh()(x) end
local function lin(x, n, m, bias) return nn.Linear(n, m, bias)(x) end
local function nobias(x, n, m) return nn.LinearNoBias(n, m)(x) end
local function step(i, f, o, g, c) -- the end of every LSTM
  local next_c = add(mul(f, c), mul(i, g))
  return next_c, mul(o, tanh(next_c))
end
local hot, parent = torch.class('OneHot', 'nn.Module')
function hot:__init(outputSize) parent.__init(self) self.outputSize = outputSize self._eye = torch.eye(outputSize) end
function hot:updateOutput(input)
  self.output:resize(input:size(1), self.outputSize):zero()
  local longInput = input:long()
  self.output:copy(self._eye:index(1, longInput))
  return self.output
end
function hot:updateGradInput(input, _) self.gradInput:resizeAs(input):zero() return self.gradInput end

onmt = {} -- OpenNMT's classes are named networks
for _, name in ipairs{'Network', 'LSTM', 'GRU', 'GlobalAttention'} do
  local class, above = torch.class('onmt.' .. name, name == 'Network' and 'nn.Container' or 'onmt.Network')
  if name == 'Network' then
    function class:__init(net) above.__init(self) self.net = net self:add(net) end
    function class:updateOutput(input) self.output = self.net:updateOutput(input) return self.output end
    function class:updateGradInput(input, grad) self.gradInput = self.net:updateGradInput(input, grad) return self.gradInput end
    function class:accGradParameters(input, grad, scale) return self.net:accGradParameters(input, grad, scale) end
  end
end

-- Cells: (x, state of a layer, sizes, layer) -> new state; the state is {c, h} or {h}
local cells = {}
local function sums(x, h, n, m, k, L, named)
  local i2h, h2h = lin(x, n, k * m), lin(h, m, k * m)
  if named then i2h, h2h = i2h:annotate{name = 'i2h_' .. L}, h2h:annotate{name = 'h2h_' .. L} end
  return add(i2h, h2h)
end
local function fours(v, m, k) return nn.SplitTable(2)(nn.Reshape(k or 4, m)(v)):split(k or 4) end
local function charrnn(named) return function(x, s, n, m, L)
  local a, b, c, d = fours(sums(x, s[2], n, m, 4, L, named), m)
  local next_c, next_h = step(sig(a), sig(b), sig(c), tanh(d), s[1])
  return {next_c, next_h}
end end
cells.charrnn, cells.plain = charrnn(true), charrnn(false)
function cells.narrow(x, s, n, m) -- the first release: one sigmoid for three gates
  local v = sums(x, s[2], n, m, 4)
  local three = sig(nn.Narrow(2, 1, 3 * m)(v))
  local function part(k) return nn.Narrow(2, (k - 1) * m + 1, m)(k == 4 and v or three) end
  local next_c, next_h = step(part(1), part(2), part(3), tanh(part(4)), s[1])
  return {next_c, next_h}
end
function cells.narrow_each(x, s, n, m)
  local v = sums(x, s[2], n, m, 4)
  local function part(k) return nn.Narrow(2, (k - 1) * m + 1, m)(v) end
  local next_c, next_h = step(sig(part(1)), sig(part(2)), sig(part(3)), tanh(part(4)), s[1])
  return {next_c, next_h}
end
function cells.zaremba(x, s, n, m)
  local gates = nn.SplitTable(2)(nn.Reshape(4, m)(sums(x, s[2], n, m, 4)))
  local function part(k) return nn.SelectTable(k)(gates) end
  local next_c, next_h = step(sig(part(1)), sig(part(3)), sig(part(4)), tanh(part(2)), s[1])
  return {next_c, next_h}
end
function cells.nobias(x, s, n, m)
  local a, b, c, d = fours(add(nobias(x, n, 4 * m), nobias(s[2], m, 4 * m)), m)
  local next_c, next_h = step(sig(a), sig(b), sig(c), tanh(d), s[1])
  return {next_c, next_h}
end
local function opennmt_layer(n, m)
  local c, h, x = id(), id(), id()
  local a, b, o, d = fours(add(lin(x, n, 4 * m), nn.LinearNoBias(m, 4 * m)(h)), m)
  local next_c, next_h = step(sig(a), sig(b), sig(o), tanh(d), c)
  return nn.gModule({c, h, x}, {next_c, next_h})
end
function cells.opennmt(x, s, n, m) return {opennmt_layer(n, m)({s[1], s[2], x}):split(2)} end
function cells.separate(x, s, n, m) -- a pair of Linears for each gate
  local function gate() return add(lin(x, n, m), lin(s[2], m, m)) end
  local i, f, o, g = sig(gate()), sig(gate()), sig(gate()), tanh(gate())
  local next_c, next_h = step(i, f, o, g, s[1])
  return {next_c, next_h}
end
function cells.joined(x, s, n, m)
  local a, b, c, d = fours(lin(nn.JoinTable(2)({x, s[2]}), n + m, 4 * m), m)
  local next_c, next_h = step(sig(a), sig(b), sig(c), tanh(d), s[1])
  return {next_c, next_h}
end
function cells.joined_state_first(x, s, n, m)
  local v = lin(nn.JoinTable(1, 1)({s[2], x}), n + m, 4 * m, false)
  local function part(k) return nn.Select(2, k)(nn.View(4, m):setNumInputDims(1)(v)) end
  local next_c, next_h = step(sig(part(3)), sig(part(1)), sig(part(4)), tanh(part(2)), s[1])
  return {next_c, next_h}
end
function cells.joined_separate(x, s, n, m)
  local xh = nn.JoinTable(2)({x, s[2]})
  local function gate() return lin(xh, n + m, m) end
  local next_c, next_h = step(sig(gate()), sig(gate()), sig(gate()), tanh(gate()), s[1])
  return {next_c, next_h}
end
local function peephole(diagonal) return function(x, s, n, m) -- Graves
  local function look(c) return diagonal and nn.CMul(m)(c) or nobias(c, m, m) end
  local function gate(c) return c and add(lin(x, n, m), lin(s[2], m, m), look(c)) or add(lin(x, n, m), lin(s[2], m, m)) end
  local i, f = sig(gate(s[1])), sig(gate(s[1]))
  local next_c = add(mul(f, s[1]), mul(i, tanh(gate())))
  return {next_c, mul(sig(gate(next_c)), tanh(next_c))}
end end
cells.peephole, cells.peephole_matrices = peephole(true), peephole(false)
function cells.gru(x, s, n, m) -- char-rnn's: reset before the product
  local h = s[1]
  local function gate() return add(lin(x, n, m), lin(h, m, m)) end
  local z, r = sig(gate()), sig(gate())
  local b = lin(mul(r, h), m, m)
  local candidate = tanh(add(lin(x, n, m), b))
  return {add(mul(z, candidate), mul(nn.AddConstant(1, false)(nn.MulConstant(-1, false)(z)), h))}
end
function cells.gru_joined(x, s, n, m)
  local h = s[1]
  local both = sig(lin(nn.JoinTable(2)({x, h}), n + m, 2 * m))
  local r, z = nn.Narrow(2, 1, m)(both), nn.Narrow(2, m + 1, m)(both)
  local candidate = tanh(lin(nn.JoinTable(2)({x, mul(r, h)}), n + m, m))
  return {add(candidate, mul(z, nn.CSubTable()({h, candidate})))}
end
function cells.gru_after(x, s, n, m) -- reset after the product, as cudnn and OpenNMT
  local h = s[1]
  local a, b, c = fours(lin(x, n, 3 * m), m, 3)
  local d, e, f = fours(lin(h, m, 3 * m), m, 3)
  local r, z = sig(add(a, d)), sig(add(b, e))
  local candidate = tanh(add(c, mul(r, f)))
  return {add(candidate, mul(z, nn.CSubTable()({h, candidate})))}
end
function cells.gru_after_separate(x, s, n, m)
  local h = s[1]
  local r, z = sig(add(lin(x, n, m), lin(h, m, m))), sig(add(lin(x, n, m), lin(h, m, m)))
  local candidate = tanh(add(lin(x, n, m), mul(r, lin(h, m, m))))
  return {add(mul(nn.AddConstant(1)(nn.MulConstant(-1)(z)), candidate), mul(z, h))}
end
local function opennmt_gru(n, m)
  local h, x = id(), id()
  return nn.gModule({h, x}, cells.gru_after(x, {h}, n, m))
end
function cells.opennmt_gru(x, s, n, m) return {opennmt_gru(n, m)({s[1], x})} end
function cells.rnn(x, s, n, m, L) return {tanh(sums(x, s[1], n, m, 1, L, true))} end
function cells.rnn_relu(x, s, n, m) return {nn.ReLU()(add(lin(x, n, m), nobias(s[1], m, m)))} end
function cells.rnn_joined(x, s, n, m) return {tanh(lin(nn.JoinTable(2)({x, s[1]}), n + m, m))} end
local width = {gru = 1, gru_joined = 1, gru_after = 1, gru_after_separate = 1, opennmt_gru = 1, rnn = 1, rnn_relu = 1, rnn_joined = 1}

-- A stack of them: inputs x, the states; outputs the states[, scores]. o: n, m, layers, dropout, vocabulary, decoder, last (x is the last input), residual
local function stack(kind, o)
  local cell, w, inputs, outputs = cells[kind], width[kind] or 2, {}, {}
  local x = id()
  for i = 1, w * (o.layers or 1) do inputs[i] = id() end
  local v, n = x, o.n
  if o.onehot then v = OneHot(o.n)(x) elseif o.words then v = nn.LookupTable(o.words, o.n)(x) end
  local previous
  for L = 1, o.layers or 1 do
    if L > 1 then
      local below = v
      if o.residual and (L > 2 or o.n == o.m) then v = add(v, previous) end
      if o.dropout then v = nn.Dropout(o.dropout)(v) end
      n = o.m
    elseif o.dropout_input then v = nn.Dropout(o.dropout_input)(v) end
    local state = {} for k = 1, w do state[k] = inputs[(L - 1) * w + k] end
    local new = cell(v, state, n, o.m, L)
    for _, s in ipairs(new) do outputs[#outputs + 1] = s end
    previous, v = v, new[w]
  end
  if o.decoder then
    if o.dropout then v = nn.Dropout(o.dropout)(v) end
    outputs[#outputs + 1] = nn.LogSoftMax()(lin(v, o.m, o.decoder):annotate{name = 'decoder'})
  end
  table.insert(inputs, o.last and #inputs + 1 or 1, x)
  local graph = nn.gModule(inputs, outputs)
  return o.class and onmt[o.class](graph) or graph
end
local function token(words) return function() return torch.Tensor(B):random(1, words) end end
local function row(n) return function() return torch.randn(B, n) end end
local function stacked(name, kind, o, both)
  local draw = (o.onehot or o.words) and token(o.words or o.n) or row(o.n)
  local count = (width[kind] or 2) * (o.layers or 1)
  local place = o.last and count + 1 or 1
  local carry = {}
  for k = 1, count do carry[tostring(o.last and k or k + 1)] = tostring(k) end
  if count == 1 and not o.decoder then carry = {[o.last and '1' or '2'] = ''} end
  local function inputs()
    local t = {} for k = 1, count do t[k] = torch.randn(B, o.m):mul(0.5) end
    table.insert(t, place, draw()) return t
  end
  local function make() return stack(kind, o) end
  local steps = {[tostring(place)] = draw}
  if both ~= 'double' then case(name, make, inputs, steps, carry, nil, o.extra) end
  if both then double(name, make, inputs, steps, carry, o.extra or both == true) end
end
stacked('charrnn_lstm_1', 'charrnn', {n = 11, m = 8, onehot = true, decoder = 11}, true)
stacked('charrnn_lstm_2', 'charrnn', {n = 13, m = 8, layers = 2, onehot = true, decoder = 13, dropout = 0.5})
stacked('charrnn_lstm_3', 'charrnn', {n = 9, m = 9, layers = 3, onehot = true, decoder = 9, dropout = 0.25, extra = true})
stacked('charrnn_lstm_narrow', 'narrow', {n = 10, m = 8, onehot = true, decoder = 10}, true)
stacked('charrnn_gru_1', 'gru', {n = 11, m = 8, onehot = true, decoder = 11}, true)
stacked('charrnn_gru_2', 'gru', {n = 12, m = 8, layers = 2, onehot = true, decoder = 12, dropout = 0.3, extra = true})
stacked('charrnn_rnn_1', 'rnn', {n = 11, m = 8, onehot = true, decoder = 11}, true)
stacked('charrnn_rnn_2', 'rnn', {n = 12, m = 8, layers = 2, onehot = true, decoder = 12, dropout = 0.3, extra = true})
stacked('word_lstm', 'plain', {n = 8, m = 12, layers = 2, words = 15, decoder = 15, dropout = 0.4, extra = true})
stacked('neuraltalk_core', 'charrnn', {n = 9, m = 9, decoder = 14, dropout = 0.5, extra = true})
stacked('lstm', 'plain', {n = 8, m = 8}, 'double')
stacked('lstm_narrow', 'narrow_each', {n = 8, m = 10, extra = true}, 'double')
stacked('lstm_no_bias', 'nobias', {n = 10, m = 8}, true)
stacked('lstm_separate', 'separate', {n = 9, m = 8}, true)
stacked('lstm_joined', 'joined', {n = 9, m = 8}, true)
stacked('lstm_joined_state_first', 'joined_state_first', {n = 9, m = 8}, 'double')
stacked('lstm_joined_separate', 'joined_separate', {n = 8, m = 8, extra = true}, 'double')
stacked('lstm_peephole', 'peephole', {n = 9, m = 8}, true)
stacked('lstm_peephole_matrices', 'peephole_matrices', {n = 9, m = 8, extra = true}, 'double')
stacked('lstm_dropout_input', 'plain', {n = 9, m = 8, layers = 2, dropout_input = 0.5, dropout = 0.5, extra = true})
stacked('opennmt_lstm_1', 'opennmt', {n = 10, m = 8, last = true, class = 'LSTM'}, true)
stacked('opennmt_lstm_2', 'opennmt', {n = 10, m = 8, layers = 2, last = true, dropout = 0.3, class = 'LSTM', extra = true})
stacked('opennmt_lstm_residual', 'opennmt', {n = 8, m = 8, layers = 2, last = true, residual = true, dropout = 0.3})
stacked('opennmt_gru_1', 'opennmt_gru', {n = 10, m = 8, last = true}, true)
stacked('opennmt_gru_residual', 'opennmt_gru', {n = 10, m = 8, layers = 2, last = true, residual = true, class = 'GRU', extra = true})
stacked('gru_joined', 'gru_joined', {n = 9, m = 8}, true)
stacked('gru_after', 'gru_after', {n = 9, m = 8}, true)
stacked('gru_after_separate', 'gru_after_separate', {n = 8, m = 8, extra = true}, 'double')
stacked('rnn_relu', 'rnn_relu', {n = 9, m = 8}, true)
stacked('rnn_joined', 'rnn_joined', {n = 9, m = 8}, 'double')

-- Zaremba's network: a table of states, and the error inside
local function zaremba(layers, n, words, p, error)
  local x, y, s = id(), id(), id()
  local v, new, split = nn.LookupTable(words, n)(x), {}, {s:split(2 * layers)}
  for L = 1, layers do
    local state = cells.zaremba(nn.Dropout(p)(v), {split[2 * L - 1], split[2 * L]}, n, n)
    new[#new + 1], new[#new + 2], v = state[1], state[2], state[2]
  end
  local pred = nn.LogSoftMax()(lin(nn.Dropout(p)(v), n, words))
  if error then return nn.gModule({x, y, s}, {nn.ModuleFromCriterion(nn.ClassNLLCriterion())({pred, y}), nn.Identity()(new)}) end
  return nn.gModule({x, s}, {pred, nn.Identity()(new)})
end
local function states(count, m) local t = {} for k = 1, count do t[k] = torch.randn(B, m):mul(0.5) end return t end
case('zaremba', function() return zaremba(2, 8, 14, 0.5) end, function() return {token(14)(), states(4, 8)} end,
  {['1'] = token(14)}, {['2.1'] = '2.1', ['2.2'] = '2.2', ['2.3'] = '2.3', ['2.4'] = '2.4'})
double('zaremba_error', function() return zaremba(2, 8, 14, 0.5, true) end, function() return {token(14)(), token(14)(), states(4, 8)} end,
  {['1'] = token(14), ['2'] = token(14)}, {['3.1'] = '2.1', ['3.2'] = '2.2', ['3.3'] = '2.3', ['3.4'] = '2.4'}, true)

-- neuraltalk2's core inside a network: a nested graph
case('neuraltalk_nested', function()
  local x, c, h = id(), id(), id()
  local inner = stack('charrnn', {n = 8, m = 8, decoder = 12, dropout = 0.5})
  local next_c, next_h, scores = inner({nn.LookupTable(12, 8)(x), c, h}):split(3)
  return nn.gModule({x, c, h}, {next_c, next_h, scores})
end, function() return {token(12)(), unpack(states(2, 8))} end, {['1'] = token(12)}, {['2'] = '1', ['3'] = '2'})

-- OpenNMT's decoder: word vectors, input feeding, a stack, attention
local function attention(kind, m, named)
  local h, context = id(), id()
  local scores
  if kind == 'dot' then
    scores = nn.Sum(3)(nn.MM()({context, nn.Replicate(1, 3)(lin(h, m, m, false))}))
  elseif kind == 'plain_dot' then
    scores = nn.Sum(3)(nn.MM()({context, nn.Replicate(1, 3)(h)}))
  else -- MLP, of Bahdanau
    local both = add(nn.View(-1, 5, m)(lin(nn.View(-1, m)(context), m, m)), nn.Replicate(5, 2)(lin(h, m, m, false)))
    scores = nn.View(-1, 5)(lin(nn.View(-1, m)(tanh(both)), m, 1, false))
  end
  local softmax = nn.SoftMax() softmax.name = 'softmaxAttn'
  local weights = softmax(scores)
  local found = nn.Sum(2)(nn.MM()({nn.Replicate(1, 2)(weights), context}))
  if kind == 'mlp' then return nn.gModule({h, context}, {found}) end
  local out = tanh(lin(nn.JoinTable(2)({found, h}), 2 * m, m, false))
  if named then out = out:annotate{name = 'attention'} end
  return nn.gModule({h, context}, {out})
end
local function context(m) return function() return torch.randn(B, 5, m) end end
for _, k in ipairs{{'dot', 'attention_dot'}, {'plain_dot', 'attention_plain', true}, {'mlp', 'attention_mlp'}} do
  local function make() return attention(k[1], 8, true) end
  local function inputs() return {torch.randn(B, 8), context(8)()} end
  case(k[2], make, inputs, {['1'] = row(8)}, nil, nil, k[3]) double(k[2], make, inputs, {['1'] = row(8)}, nil, true)
end
local attending = {} -- (query, memory, size, steps of the memory), as released OpenNMT, Show-attend-tell and co-attention have it
function attending.general(h, memory, m)
  local scores = nn.Squeeze(3)(nn.MM()({memory, nn.Replicate(1, 3)(lin(h, m, m, false))}))
  local found = nn.Squeeze(2)(nn.MM()({nn.Replicate(1, 2)(nn.SoftMax()(scores)), memory}))
  return tanh(lin(nn.JoinTable(2)({found, h}), 2 * m, m, false))
end
function attending.concat(h, memory, m, T)
  local sums = nn.Tanh()(nn.Bottle(nn.Linear(2 * m, m, false), 2)(nn.JoinTable(3)({nn.Replicate(T, 2)(h), memory})))
  local weights = nn.SoftMax()(nn.Squeeze(3)(nn.Bottle(nn.Linear(m, 1), 2)(sums)))
  return nn.Squeeze(2)(nn.MM()({nn.Replicate(1, 2)(weights), memory}))
end
function attending.tell(h, memory, m, T) -- weights are multiplied with each feature, and summed
  local seen = nn.View(T, m):setNumInputDims(2)(lin(nn.View(-1, m)(memory), m, m))
  local sums = nn.Tanh()(add(seen, nn.Replicate(T, 2)(lin(h, m, m))))
  local weights = nn.SoftMax()(nn.View(-1, T)(lin(nn.View(-1, m)(sums), m, 1)))
  local found = nn.Sum(2)(mul(nn.Replicate(m, 3)(weights), memory))
  return nn.CAddTable()({found, mul(sig(lin(h, m, m)), h)})
end
function attending.matrix(h, memory, m)
  local scores = nn.Sum(2)(nn.MM(false, true)({nn.View(1, -1):setNumInputDims(1)(h), memory}))
  local weights = nn.View(1, -1):setNumInputDims(1)(nn.SoftMax()(scores))
  return nn.View(m):setNumInputDims(2)(nn.MM(false, false)({weights, memory}))
end
for _, kind in ipairs{'general', 'concat', 'tell', 'matrix'} do
  local function make()
    local h, memory = id(), id()
    return nn.gModule({h, memory}, {attending[kind](h, memory, 8, 5)})
  end
  local function inputs() return {torch.randn(B, 8), context(8)()} end
  if kind == 'general' or kind == 'tell' then case('attend_' .. kind, make, inputs, {['1'] = row(8)}, nil, nil, true) end
  double('attend_' .. kind, make, inputs, {['1'] = row(8)}, nil, true)
end
local function decoder(m, words, cell, feed)
  local c, h, x, all_states, fed = id(), id(), id(), id(), feed and id() or nil
  local v, n = nn.LookupTable(words, m)(x), m
  if feed then v, n = nn.JoinTable(2)({v, fed}), 2 * m end
  local next_c, next_h = opennmt_layer(n, m)({c, h, v}):split(2)
  local out = nn.Dropout(0.3)(attention('dot', m)({next_h, all_states}))
  return nn.gModule({c, h, x, all_states, fed}, {next_c, next_h, out})
end
case('opennmt_decoder', function() return decoder(8, 13) end, function() local c, h = unpack(states(2, 8)) return {c, h, token(13)(), context(8)()} end,
  {['3'] = token(13)}, {['1'] = '1', ['2'] = '2'}, nil, true)
case('opennmt_decoder_fed', function() return decoder(8, 13, nil, true) end, function() local c, h, f = unpack(states(3, 8)) return {c, h, token(13)(), context(8)(), f} end,
  {['3'] = token(13)}, {['1'] = '1', ['2'] = '2', ['5'] = '3'})

-- Highway layers (Srivastava), as lstm-char-cnn has them
local function highway(size, layers, bias, f)
  local x = id()
  local v = x
  for _ = 1, layers do
    local out = f()(lin(v, size, size))
    local gate = sig(nn.AddConstant(bias)(lin(v, size, size)))
    v = add(mul(gate, out), mul(nn.AddConstant(1)(nn.MulConstant(-1)(gate)), v))
  end
  return nn.gModule({x}, {v})
end
case('highway', function() return highway(9, 2, -2, nn.ReLU) end, row(9), {[''] = row(9)})
double('highway_tanh', function() return highway(9, 1, -1, nn.Tanh) end, row(9), {[''] = row(9)})
for _, both in ipairs{false, true} do -- after a projection; the last gate lets the input pass
  local function make()
    local x, y = id(), id()
    local v = highway(8, 2, -2, nn.ReLU)(lin(nn.JoinTable(2)({x, y}), 9, 8))
    v = lin(v, 8, 7)
    local carry = sig(lin(v, 7, 7, false))
    v = add(mul(carry, v), mul(nn.AddConstant(1)(nn.MulConstant(-1)(carry)), tanh(lin(v, 7, 7, false))))
    return nn.gModule({x, y}, {nn.LogSoftMax()(lin(v, 7, 5))})
  end
  local function inputs() return {torch.randn(B, 4), torch.randn(B, 5)} end
  (both and double or case)('gated_network', make, inputs, {['1'] = row(4), ['2'] = row(5)}, nil, both or nil, not both)
end
double('gated_tied', function() -- the layers of two, which differ in their functions
  local x, gate, transform = id(), nn.Linear(6, 6), nn.Linear(6, 6)
  local v = x
  local function again(l) return l:clone('weight', 'bias', 'gradWeight', 'gradBias') end
  for _, f in ipairs{nn.ReLU(), nn.Tanh()} do
    local t = sig(again(gate)(v))
    v = add(mul(t, f(again(transform)(v))), mul(nn.AddConstant(1)(nn.MulConstant(-1)(t)), v))
  end
  return nn.gModule({x}, {v})
end, row(6), {[''] = row(6)}, nil, true)

-- Unrolled over five steps with clones that share the weights
local function unrolled(kind, n, m, T, annotated)
  local w = width[kind] or 2
  local x, state, xs = id(), {}, {}
  for k = 1, w do state[k] = id() end
  local inner = nn.gModule({x, unpack(state)}, cells[kind](x, state, n, m, 1))
  local inputs, now, outputs = {}, {}, {}
  for t = 1, T do xs[t] = id() inputs[t] = xs[t] end
  for k = 1, w do now[k] = id() inputs[T + k] = now[k] end
  for t = 1, T do
    local clone = t == 1 and inner or inner:clone('weight', 'bias', 'gradWeight', 'gradBias')
    local out = clone({xs[t], unpack(now)})
    if annotated then out = out:annotate{name = 'step_' .. t} end
    now = w == 1 and {out} or {out:split(w)}
    outputs[t] = now[w]
  end
  if w == 2 then outputs[T + 1] = now[1] end
  return nn.gModule(inputs, outputs)
end
local function over(T, n) local steps = {} for t = 1, T do steps[tostring(t)] = row(n) end return steps end
local function unrolled_inputs(T, n, m, w) return function() local t = {} for i = 1, T do t[i] = torch.randn(B, n) end for _, s in ipairs(states(w, m)) do t[#t + 1] = s end return t end end
local function carried(T, w) return w == 1 and {[tostring(T + 1)] = tostring(T)} or {[tostring(T + 1)] = tostring(T + 1), [tostring(T + 2)] = tostring(T)} end
for _, k in ipairs{{'plain', 'unrolled_lstm', 2, true}, {'plain', 'unrolled_lstm_5', 5}, {'gru', 'unrolled_gru', 5}, {'gru_after', 'unrolled_gru_after', 5}, {'rnn', 'unrolled_rnn', 5}} do
  local kind, name, T, w = k[1], k[2], k[3], width[k[1]] or 2
  case(name, function() return unrolled(kind, 8, 9, T, kind == 'plain') end, unrolled_inputs(T, 8, 9, w), over(T, 8), carried(T, w), nil, not k[4])
end
local function flat(n, m, T) -- one graph: modules with shared weights at each step
  local i2h, h2h, inputs, outputs = nn.Linear(n, 4 * m), nn.Linear(m, 4 * m), {}, {}
  local c, h = id(), id()
  inputs[T + 1], inputs[T + 2] = c, h
  for t = 1, T do
    inputs[t] = id()
    local function again(l) return t == 1 and l or l:clone('weight', 'bias', 'gradWeight', 'gradBias') end
    local a, b, o, d = fours(add(again(i2h)(inputs[t]), again(h2h)(h)), m)
    c, h = step(sig(a), sig(b), sig(o), tanh(d), c)
    outputs[t] = h
  end
  outputs[T + 1] = c
  return nn.gModule(inputs, outputs)
end
for _, T in ipairs{2, 5} do
  double('unrolled_flat_' .. T, function() return flat(8, 8, T) end, unrolled_inputs(T, 8, 8, 2), over(T, 8), carried(T, 2), T == 5)
end

-- A simple cell whose state comes first, unrolled: only the outer graph says which input is the state. The decoder has all steps in common.
case('fed_back_rnn', function()
  local h, x = id(), id()
  local inner, score = nn.gModule({h, x}, {tanh(add(lin(h, 9, 9), lin(x, 5, 9)))}), nn.Sequential():add(nn.Linear(9, 5)):add(nn.LogSoftMax())
  local inputs, outputs = {id()}, {}
  local now = inputs[1]
  for t = 1, 3 do
    inputs[t + 1] = id()
    now = (t == 1 and inner or inner:clone('weight', 'bias', 'gradWeight', 'gradBias'))({now, inputs[t + 1]})
    outputs[t] = (t == 1 and score or score:clone('weight', 'bias', 'gradWeight', 'gradBias'))(now)
  end
  outputs[4] = now
  return nn.gModule(inputs, outputs)
end, function() return {torch.zeros(B, 9), torch.randn(B, 5), torch.randn(B, 5), torch.randn(B, 5)} end, {['2'] = row(5), ['3'] = row(5), ['4'] = row(5)}, {['1'] = '4'}, nil, true)

-- torch-rnn's nn.LanguageModel: it keeps its state from call to call
do
  local function class(name, gates)
    local c, above = torch.class('nn.' .. name, 'nn.Module')
    function c:__init(input_dim, hidden_dim)
      above.__init(self)
      local D, H = input_dim, hidden_dim
      self.input_dim, self.hidden_dim = D, H
      self.weight, self.gradWeight = torch.Tensor(D + H, gates * H), torch.Tensor(D + H, gates * H):zero()
      self.bias, self.gradBias = torch.Tensor(gates * H), torch.Tensor(gates * H):zero()
      self.h0 = torch.Tensor()
      if gates == 4 then self.cell, self.c0, self.gates = torch.Tensor(), torch.Tensor(), torch.Tensor() end
      self.remember_states = false
    end
    function c:resetStates() self.h0 = self.h0.new() if gates == 4 then self.c0 = self.c0.new() end end
    function c:updateOutput(x)
      local N, T, D, H = x:size(1), x:size(2), self.input_dim, self.hidden_dim
      local kept = self.remember_states and self.output:nElement() > 0 and self.output:size(1) == N
      local h = kept and self.output:select(2, self.output:size(2)):clone() or x.new(N, H):zero()
      local cell = gates == 4 and (kept and self.cell:select(2, self.cell:size(2)):clone() or x.new(N, H):zero())
      self.output = x.new(N, T, H)
      if cell then self.cell = x.new(N, T, H) end
      for t = 1, T do
        local sum = torch.mm(x:select(2, t), self.weight:narrow(1, 1, D)) + torch.mm(h, self.weight:narrow(1, D + 1, H)) + self.bias:view(1, -1):expand(N, gates * H)
        if cell then
          local function gate(k) return sum:narrow(2, (k - 1) * H + 1, H) end
          cell = torch.cmul(torch.sigmoid(gate(2)), cell) + torch.cmul(torch.sigmoid(gate(1)), torch.tanh(gate(4)))
          h = torch.cmul(torch.sigmoid(gate(3)), torch.tanh(cell))
          self.cell:select(2, t):copy(cell)
        else h = torch.tanh(sum) end
        self.output:select(2, t):copy(h)
      end
      return self.output
    end
    function c:clearState() self.output = self.output.new() if gates == 4 then self.cell = self.cell.new() end self:resetStates() end
  end
  class('LSTM', 4) class('VanillaRNN', 1)
  local LM, above = torch.class('nn.LanguageModel', 'nn.Module')
  function LM:__init(o)
    above.__init(self)
    self.idx_to_token, self.token_to_idx, self.vocab_size = {}, {}, o.words
    for i = 1, o.words do local token = string.char(96 + i) self.idx_to_token[i], self.token_to_idx[token] = token, i end
    self.model_type, self.wordvec_dim, self.rnn_size, self.num_layers, self.dropout, self.batchnorm = o.kind, o.n, o.m, o.layers, o.dropout or 0, o.batchnorm or 0
    self.net, self.rnns, self.bn_view_in, self.bn_view_out = nn.Sequential(), {}, {}, {}
    self.net:add(nn.LookupTable(o.words, o.n))
    for i = 1, o.layers do
      local rnn = (o.kind == 'lstm' and nn.LSTM or nn.VanillaRNN)(i == 1 and o.n or o.m, o.m)
      rnn.remember_states = true
      table.insert(self.rnns, rnn) self.net:add(rnn)
      if self.batchnorm == 1 then
        local view_in, view_out = nn.View(1, 1, -1):setNumInputDims(3), nn.View(1, -1):setNumInputDims(2)
        table.insert(self.bn_view_in, view_in) table.insert(self.bn_view_out, view_out)
        self.net:add(view_in):add(nn.BatchNormalization(o.m)):add(view_out)
      end
      if self.dropout > 0 then self.net:add(nn.Dropout(self.dropout)) end
    end
    self.view1, self.view2 = nn.View(1, 1, -1):setNumInputDims(3), nn.View(1, -1):setNumInputDims(2)
    self.net:add(self.view1):add(nn.Linear(o.m, o.words)):add(self.view2)
  end
  function LM:updateOutput(input)
    local N, T = input:size(1), input:size(2)
    self.view1:resetSize(N * T, -1) self.view2:resetSize(N, T, -1)
    for _, v in ipairs(self.bn_view_in) do v:resetSize(N * T, -1) end
    for _, v in ipairs(self.bn_view_out) do v:resetSize(N, T, -1) end
    return self.net:forward(input)
  end
  function LM:parameters() return self.net:parameters() end
  function LM:training() self.net:training() above.training(self) end
  function LM:evaluate() self.net:evaluate() above.evaluate(self) end
  function LM:clearState() self.net:clearState() end
  function LM:listModules() local t = {self} for _, q in ipairs(self.net:listModules()) do t[#t + 1] = q end return t end
  local function tokens(words) return function() return torch.Tensor(B, 2):random(1, words) end end
  for _, o in ipairs{{'lstm', kind = 'lstm', words = 11, n = 8, m = 9, layers = 2, dropout = 0.2}, {'lstm_normalized', kind = 'lstm', words = 10, n = 8, m = 8, layers = 2, batchnorm = 1}, {'rnn', kind = 'rnn', words = 11, n = 8, m = 9, layers = 1}} do
    case('torch_rnn_stateful_' .. o[1], function() return nn.LanguageModel(o) end, tokens(o.words), {[''] = tokens(o.words)})
  end
end
torch.save(OUT, all)
print(count .. ' records, of which ' .. #all .. ' in one file')
