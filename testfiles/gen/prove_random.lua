-- prove_random.lua OUTDIR FIRST LAST [STATE]: random networks, one for each seed, in one of eight states that training programs leave:
-- OUTDIR/<seed>.<net>.<state>.t7. States: fresh (forward and backward), eval, evalmode (forward in training, then evaluate()),
-- sgd, momentum, adam1, rmsprop (saved after updates), evalafter (updates, then a forward in evaluation).
-- Of files of states without later updates four changed copies, by one weight or option that shows in what Lua computes: its
-- path, class, field and largest change in units of 1e-5 + 1e-4 |output| in <seed>.…bad.txt.
require 'nn'; require 'nngraph'; require 'optim'; require 'rnn'
local out, first, last = assert(arg[1]), tonumber(arg[2]), tonumber(arg[3])
torch.setnumthreads(1); torch.setdefaulttensortype('torch.FloatTensor'); nn.FastLSTM.usenngraph = false
local N, R = torch.randn, function(a, b) return torch.random(a, b) end
local function seq(...) local s = nn.Sequential(); for _, e in ipairs{...} do s:add(e) end; return s end
local act = function(inplace) local k = R(1, 6); return k == 1 and nn.ReLU(inplace) or k == 2 and nn.Tanh() or k == 3 and nn.Sigmoid() or k == 4 and nn.LeakyReLU(0.1 + 0.05 * R(1, 4), inplace) or k == 5 and nn.ELU(0.5 + 0.1 * R(1, 5)) or nn.PReLU() end
local nets = {
   resnet_stem = function() local c = R(3, 5); return seq(nn.SpatialConvolution(3, c, 7, 7, 2, 2, 3, 3), nn.SpatialBatchNormalization(c), nn.ReLU(true), nn.SpatialMaxPooling(3, 3, 2, 2, 1, 1), nn.SpatialConvolution(c, 4, 3, 3, 2, 2, 1, 1), nn.SpatialBatchNormalization(4), nn.ReLU(true), nn.View(-1):setNumInputDims(3), nn.Linear(16, 5)), function() return N(2, 3, 16, 16) end end,
   alexnet_stem = function() return seq(nn.SpatialConvolution(3, 4, 11, 11, 4, 4, 2, 2), nn.ReLU(true), nn.SpatialMaxPooling(3, 3, 2, 2), nn.SpatialConvolution(4, 5, 5, 5, 1, 1, 2, 2), nn.ReLU(true), nn.View(-1):setNumInputDims(3), nn.Linear(5 * 3 * 3, 6), nn.LogSoftMax()), function() return N(2, 3, 31, 31) end end,
   strided = function() local k, s, p, n = R(2, 5), R(1, 4), R(0, 2), R(9, 14); local o = math.floor((n + 2 * p - k) / s) + 1; return seq(nn.SpatialConvolution(2, 4, k, k, s, s, p, p), act(true), nn.SpatialConvolution(4, 3, 1, 1), act(true), nn.View(-1):setNumInputDims(3), nn.Linear(3 * o * o, 4)), function() return N(3, 2, n, n) end end,
   dropout = function() local p = 0.05 + 0.85 * torch.uniform(); return seq(nn.Linear(7, 9), act(), nn.Dropout(p), nn.Linear(9, 6), act(), nn.Linear(6, 4)):type(R(1, 2) == 1 and 'torch.DoubleTensor' or 'torch.FloatTensor'), function() return N(5, 7) end end,
   mlp_bn = function() return seq(nn.Linear(6, 8), nn.BatchNormalization(8), act(true), nn.Linear(8, 7), nn.BatchNormalization(7, 1e-3), act(), nn.Linear(7, 3), nn.LogSoftMax()), function() return N(6, 6) end end,
   one_layer = function() return seq(nn.Tanh(), nn.Linear(5, 4), nn.Tanh()), function() return N(6, 5) end end,
   conv_bn = function() return seq(nn.SpatialConvolution(2, 4, 3, 3, 1, 1, 1, 1), nn.SpatialBatchNormalization(4), act(), nn.SpatialAveragePooling(2, 2, 2, 2), nn.SpatialFullConvolution(4, 3, 3, 3, 2, 2, 1, 1), act(true), nn.SpatialDropout(0.3), nn.SpatialConvolution(3, 2, 3, 3)), function() return N(2, 2, 8, 8) end end,
   branches = function() return seq(nn.Linear(5, 6), nn.ConcatTable():add(seq(nn.Linear(6, 6), act(true), nn.Linear(6, 6))):add(nn.Identity()), nn.CAddTable(R(1, 2) == 1), act(true), nn.Concat(2):add(nn.Linear(6, 3)):add(seq(nn.Linear(6, 4), act())), nn.Linear(7, 3)), function() return N(4, 5) end end,
   graph = function() local x = nn.Identity()(); local a = act()(nn.Linear(6, 5)(x)); local b = act()(nn.Linear(6, 5)(x)); return nn.gModule({x}, {nn.Linear(5, 3)(nn.CMulTable()({a, b})), nn.Linear(10, 2)(nn.JoinTable(2)({a, b}))}), function() return N(5, 6) end end,
   lstm = function() return seq(nn.Sequencer(nn.Linear(4, 5)), nn.Sequencer(nn.FastLSTM(5, 4)), nn.Sequencer(nn.Linear(4, 3))), function() return {N(3, 4), N(3, 4), N(3, 4)} end end,
   seqlstm = function() return seq(nn.SeqLSTM(4, 5), nn.SeqGRU(5, 3), nn.Sequencer(nn.Linear(3, 3))), function() return N(4, 3, 4) end end,
   text = function() return seq(nn.LookupTable(11, 5), nn.TemporalConvolution(5, 6, 3), act(), nn.TemporalMaxPooling(4), nn.View(-1):setNumInputDims(2), nn.Linear(6, 4), nn.CMul(4), nn.LogSoftMax()), function() return torch.rand(4, 6):mul(11):floor():add(1) end end,
}
local names = {}; for name in pairs(nets) do names[#names + 1] = name end; table.sort(names)
local states = arg[4] and {arg[4]} or {'fresh', 'eval', 'evalmode', 'sgd', 'momentum', 'adam1', 'rmsprop', 'evalafter'}
local function like(y) if torch.isTensor(y) then return N(y:size()):typeAs(y) end; local o = {}; for i, e in ipairs(y) do o[i] = like(e) end; return o end
local function cast(x, m) local kind = m:type(); if torch.isTensor(x) then return x:type(kind) end; for i, e in ipairs(x) do x[i] = e:type(kind) end; return x end
local function pass(m, x) if m.forget then m:forget() end; m:zeroGradParameters(); local y = m:forward(x); m:backward(x, like(y)) end
local function copy(v) if torch.isTensor(v) then return v:clone() end; local o = {}; for i, e in ipairs(v) do o[i] = copy(e) end; return o end
local function leaves(v, o) o = o or {}; if torch.isTensor(v) then o[#o + 1] = v else for _, e in ipairs(v) do leaves(e, o) end end; return o end
-- Changes
local options = {eps = function(v) return v * 10 end, padW = function(v) return v + 1 end, padH = function(v) return v + 1 end, dW = function(v) return v + 1 end, dH = function(v) return v + 1 end, ceil_mode = function(v) return not v end, negval = function(v) return v * 1.2 + .01 end, alpha = function(v) return v * 1.1 end, threshold = function(v) return v + .2 end, val = function(v) return v - .1 end, count_include_pad = function(v) return not v end, constant_scalar = function(v) return v * 1.1 end, train = function(v) return not v end}
local C = math.random -- for torch's numbers start again with each run
local weights = {'weight', 'bias', 'running_mean', 'running_var'}
local function run(m, x) torch.manualSeed(7); local ok, y = pcall(function() return copy(m:updateOutput(copy(x))) end); return ok and leaves(y) end
local function found(m, x, list, path)
   local kind = torch.typename(m)
   if kind == 'nn.gModule' then for _, node in ipairs(m.forwardnodes) do if node.data.module then for i, e in ipairs(m.modules) do if e == node.data.module then found(e, #node.data.input == 1 and node.data.input[1] or node.data.input, list, path..'.modules['..i..']') end end end end
   elseif kind == 'nn.Sequential' then for i, e in ipairs(m.modules) do found(e, x, list, path..'.modules['..i..']'); x = e.output end
   elseif kind == 'nn.ConcatTable' or kind == 'nn.Concat' then for i, e in ipairs(m.modules) do found(e, x, list, path..'.modules['..i..']') end
   elseif not m.modules and x then list[#list + 1] = {m = m, x = x, path = path} end
   return list
end
local function changed(m, x)
   local list = found(m, x, {}, 'root'); if #list == 0 then return end
   for try = 1, 60 do
      local one = list[C(1, #list)]; local e, before = one.m, one.m:clone(); local a = run(before, one.x); local field, undo
      if C(1, 3) > 1 then
         local have = {}; for _, n in ipairs(weights) do if torch.isTensor(e[n]) and e[n]:nElement() > 0 then have[#have + 1] = n end end
         if #have > 0 and not torch.typename(e):find('Seq') then field = have[C(1, #have)]; local t = e[field]; local flat = t:view(-1); local k = C(1, flat:nElement()); local old = flat[k]; flat[k] = C(1, 2) == 1 and old * 1.01 or old + 1e-2 * t:clone():abs():max(); undo = function() flat[k] = old end end
      else
         local have = {}; for n in pairs(options) do if type(e[n]) == 'number' or type(e[n]) == 'boolean' then have[#have + 1] = n end end
         table.sort(have)
         if #have > 0 then field = have[C(1, #have)]; local old = e[field]; e[field] = options[field](old); undo = function() e[field] = old end end
      end
      if field then
         local after = e:clone(); local b = run(after, one.x); local worst = 0
         if a and (not b or #a ~= #b) then worst = 1e9 elseif a then for i, t in ipairs(a) do if not t:isSameSizeAs(b[i]) then worst = 1e9 else worst = math.max(worst, (t:double() - b[i]:double()):abs():cdiv(t:double():abs():mul(1e-4):add(1e-5)):max()) end end end
         if worst > 1 then return undo, {one.path, torch.typename(e), field, string.format('%.3g', worst)} end
         undo()
      end
   end
end
for seed = first, last do
   torch.manualSeed(seed)
   local name, state = names[(seed - 1) % #names + 1], states[math.floor((seed - 1) / #names) % #states + 1]
   local m, make = nets[name](); local function input() return cast(make(), m) end
   for _, e in ipairs(m:parameters()) do if e:dim() == 1 then e:add(N(e:size()):typeAs(e):mul(0.1)) end end
   local p, g = m:getParameters(); local config = {learningRate = 0.01}
   local function steps(method, count, config) for i = 1, count do local x = input(); optim[method](function() g:zero(); if m.forget then m:forget() end; local y = m:forward(x); m:backward(x, like(y)); return 0, g end, p, config) end end
   m:training(); local x = input()
   if state == 'fresh' then steps('sgd', 2, config); pass(m, x)
   elseif state == 'eval' then steps('sgd', 2, config); m:evaluate(); if m.forget then m:forget() end; m:forward(x)
   elseif state == 'evalmode' then pass(m, x); m:evaluate()
   elseif state == 'sgd' then steps('sgd', 3, config)
   elseif state == 'momentum' then steps('sgd', 6, {learningRate = 0.01, momentum = 0.9})
   elseif state == 'nesterov' then steps('sgd', 5, {learningRate = 0.02, weightDecay = 1e-3, momentum = 0.9, nesterov = true, dampening = 0})
   elseif state == 'adam1' then steps('adam', 1, {learningRate = 1e-3})
   elseif state == 'rmsprop' then steps('rmsprop', 5, {learningRate = 1e-3})
   else steps('adam', 4, {learningRate = 1e-3}); m:evaluate(); if m.forget then m:forget() end; m:forward(x) end
   local stem = string.format('%s/%d.%s.%s', out, seed, name, state)
   torch.save(stem..'.t7', m)
   if state == 'fresh' or state == 'eval' or state == 'evalafter' then
      math.randomseed(seed)
      for number = 1, 4 do
         local undo, what = changed(m, x)
         if what then torch.save(stem..'.'..number..'.bad.t7', m); local f = io.open(stem..'.'..number..'.bad.txt', 'w'); f:write(table.concat(what, '\t'), '\n'); f:close(); undo() end
      end
   end
end
