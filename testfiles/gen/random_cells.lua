-- Random recurrent cells as nngraph graphs, most of them with something changed, and what Lua Torch computes with them, as one list of records.
--   th random_cells.lua SEED COUNT OUT.t7 [KIND | CHANGE …]       (needs nngraph and rnn; only these kinds or changes)
-- A record: model, inputs, steps, carry and outputs as in cells.lua, of four steps; text: how the cell is made, changes: those of `changes`
-- that were made, and cells: the number of cells by kind that must be recognized, if no change forbids it.
require 'nn' require 'nngraph' require 'rnn.LinearNoBias'
local SEED, COUNT, OUT = tonumber(arg[1] or 1), tonumber(arg[2] or 10), arg[3] or 'out.t7'
local ONLY, KINDS = {}, {}
local LAST = 4
torch.setdefaulttensortype('torch.DoubleTensor') torch.manualSeed(SEED) torch.setnumthreads(1)
local function int(a, b) return torch.random(a, b) end
local function chance(p) return torch.uniform() < p end
local function pick(list) return list[int(1, #list)] end
local function copy(v) if torch.isTensor(v) then return v:clone() end if type(v) ~= 'table' then return v end local t = {} for i, e in ipairs(v) do t[i] = copy(e) end return t end
local function keys(path) local t = {} for key in tostring(path):gmatch('%d+') do t[#t + 1] = tonumber(key) end return t end
local function at(v, path) for _, key in ipairs(keys(path)) do v = v[key] end return v end
local function set(v, path, to) local k = keys(path) local inner = v for i = 1, #k - 1 do inner = inner[k[i]] end inner[k[#k]] = to end
local function shuffled(list) local t = {} for i, e in ipairs(list) do table.insert(t, int(1, i), e) end return t end

-- Changes: whether a model may still be recognized ('same': it must, 'may': it is the same function under other names, or not; 'not': it must not,
-- as weights or inner values have another use, or another function is computed)
local changes = {
  none = 'same',
  relu = 'may', hard = 'not', linear_output = 'not', product_of_sums = 'not', product_in_cell = 'not', sum_for_product = 'not', swapped_states = 'may', one_bias_missing = 'may',
  tied_gates = 'not', tied_biases = 'not', tied_outside = 'not', tied_cells = 'may', consumer = 'not', consumer_of_tanh = 'same', dropout_candidate = 'not', dropout_gate = 'not',
  dropout_cell = 'not', dropout_h_once = 'not', dropout_x = 'same', dropout_none = 'may', constant_forget = 'may', constant_scale = 'not', constant_huge = 'not', constant_zero = 'may',
  constant_back = 'may', constant_tiny = 'may', in_place_x = 'not', in_place_h = 'not', in_place_c = 'not', in_place_out = 'may', in_place_sum = 'may', third_value = 'not', x_twice = 'not', gate_sees_gate = 'not',
  gate_sees_cell = 'may', overlap = 'not', rows_left = 'not', same_rows = 'not', interleaved = 'may', hidden_sum = 'may', wrapped = 'same', flattened = 'same', x_is_h = 'may', c_is_x = 'may', c_is_h = 'may',
  two_minus = 'not', coupled = 'may', reset_of_x = 'not', reset_outside = 'may', reset_twice = 'not', normalized = 'not', outputs_twice = 'same', cell_unused = 'same', strided = 'may', reversal = 'same', reversal_inside = 'not',
  projected = 'same', sum_carried = 'may', other_carried = 'not', own_carry = 'not', in_place_relu = 'may',
  clipped = 'not', clipped_output = 'same', negative_gate = 'may', computed_twice = 'may', other_cell = 'not', peephole_scaled = 'not', candidate_of_cell = 'not', square = 'not', expanded = 'may', batch_norm_x = 'same', nan = 'may', annotated = 'same',
}
local names = {} for name in pairs(changes) do names[#names + 1] = name end table.sort(names)

local wanted, made, extra, kind, after -- changes of the present model, those made; further outputs; the kind of cell; functions of the finished model
local function on(name, p)
  if not wanted[name] or not chance(p or 0.7) then return false end
  made[name] = true
  return true
end

-- Pieces
local function id(x) return x and nn.Identity()(x) or nn.Identity()() end
local function add(...)
  local list = shuffled{...}
  if #list == 1 then return list[1] end
  if on('in_place_sum', 0.5) then return nn.CAddTable(true)(list) end
  if #list > 2 and chance(0.4) then local last = table.remove(list) return nn.CAddTable()({nn.CAddTable()(list), last}) end
  return nn.CAddTable()(list)
end
local function mul(...) return nn.CMulTable()(shuffled{...}) end
local function fixed(v) -- things that change nothing, and a few that do
  if on('constant_zero', 0.3) then v = nn.AddConstant(0)(v) end
  if on('constant_back', 0.3) then v = pick{function() return nn.MulConstant(-1)(nn.MulConstant(-1)(v)) end, function() return nn.MulConstant(0.5)(nn.MulConstant(2)(v)) end}() end
  if on('constant_huge', 0.3) then v = nn.AddConstant(-1e18)(nn.AddConstant(1e18)(v)) end
  if on('constant_tiny', 0.3) then v = nn.AddConstant(1e-17)(v) end
  if on('wrapped', 0.4) then v = pick{function() return nn.Sequential():add(nn.Identity()):add(nn.Identity())(v) end, function() return nn.Contiguous()(v) end, function() return id(id(v)) end}() end
  if on('reversal_inside', 0.3) then v = nn.GradientReversal()(v) end
  return v
end
local function sig(v)
  v = fixed(v)
  if on('hard', 0.4) then return pick{function() return nn.HardTanh(0, 1)(v) end, function() return nn.SoftPlus()(v) end, function() return nn.Tanh()(v) end, function() return nn.SoftMax()(v) end}() end
  if on('negative_gate', 0.4) then return nn.Sigmoid()(nn.MulConstant(-1)(v)) end
  v = nn.Sigmoid()(v)
  if on('dropout_gate', 0.4) then v = nn.Dropout(0.5)(v) end
  if on('dropout_none', 0.3) then v = nn.Dropout(0)(v) end
  if on('square', 0.4) then v = mul(v, v) end
  return v
end
local function tanh(v)
  v = fixed(v)
  if on('relu') then return nn.ReLU()(v) end
  if on('constant_scale', 0.5) then v = nn.MulConstant(2)(v) end
  v = nn.Tanh()(v)
  if on('dropout_candidate') then v = nn.Dropout(0.5)(v) end
  return v
end
local function minus(z) -- 1 - z
  local k = on('two_minus') and 2 or 1
  return pick{function() return nn.AddConstant(k)(nn.MulConstant(-1)(z)) end, function() return nn.MulConstant(-1)(nn.AddConstant(-k)(z)) end}()
end
local function mix(z, a, b) -- (1 - z) a + z b
  if chance(0.3) then return add(a, mul(z, nn.CSubTable()({b, a}))) end
  return add(mul(minus(z), a), mul(z, b))
end
local notes = {'x', 'h', 'c', 'h1', 'c1', 'h2', 'x1', 'lstm', 'lstm1', 'gru', 'rnn', 'inputs', 'state', 'gates', 'attention', 'next_h', 'parts', 'input1', 'self', 'decoder', 'i2h_1'}
local plain_mul, plain_add, plain_id = mul, add, id
local function noted(v) if on('annotated', 0.4) then v:annotate{name = pick(notes)} end return v end
function id(x) return noted(plain_id(x)) end
function add(...) return noted(plain_add(...)) end
function mul(...) return noted(plain_mul(...)) end
local all_linear -- of the present model: {layer, inputs, outputs}
local function linear(v, n, m, bias)
  local layer = (bias == false and chance(0.4)) and nn.LinearNoBias(n, m) or nn.Linear(n, m, bias)
  if bias == false and layer.bias then layer.bias = nil layer.gradBias = nil end
  if on('strided', 0.4) then layer.weight = torch.randn(n, m):t() layer.gradWeight = layer.weight.new(m, n):zero() end
  all_linear[#all_linear + 1] = {layer, n, m}
  return noted(layer(v))
end

-- The sums of some gates: letters -> nodes. s: style; sizes n, m
local style
local function biases() return style.bias == 'both' or style.bias == 'x', style.bias == 'both' or style.bias == 'h' end
local function affine(x, h, n, m, k, letter)
  local bx, bh = biases()
  if letter and on('one_bias_missing', 0.4) then bx = false end
  if on('dropout_h_once', 0.4) then h = nn.Dropout(0.5)(h) end
  local v
  if style.join and not on('product_of_sums', 0.3) then
    local list, size = style.state_first and {h, x} or {x, h}, n + m
    v = linear(pick{function() return nn.JoinTable(2)(list) end, function() return nn.JoinTable(1, 1)(list) end}(), size, k * m, bx or bh)
    if style.bias == 'add' then v = nn.Add(k * m)(v) end
  elseif style.parallel then
    v = nn.Sequential():add(nn.ParallelTable():add(nn.Linear(n, k * m, bx)):add(nn.Linear(m, k * m, bh))):add(nn.CAddTable())({x, h})
  else
    local a, b = linear(x, n, k * m, bx), linear(h, m, k * m, bh)
    if on('product_of_sums', 0.4) then v = mul(a, b)
    elseif on('third_value', 0.4) then v = add(a, b, linear(nn.Tanh()(h), m, k * m, false))
    elseif on('x_twice', 0.4) then v = add(a, b, linear(x, n, k * m, false))
    else v = add(a, b) end
    if style.bias == 'add' then v = nn.Add(k * m)(v) end
  end
  if on('normalized', 0.4) then local bn = nn.BatchNormalization(k * m) bn.running_mean:normal() bn.running_var:uniform(0.5, 2) v = bn(v) end
  return v
end
local function cut(v, k, m) -- k parts of m
  local how = style.cut
  if on('interleaved') then return {nn.SplitTable(3)(nn.Reshape(m, k)(v)):split(k)} end
  if on('overlap') then local t = {} for i = 1, k do t[i] = nn.Narrow(2, (i - 1) * (m - 1) + 1, m)(v) end return t end
  if on('same_rows') then local t = {} for i = 1, k do t[i] = nn.Narrow(2, (int(1, k) - 1) * m + 1, m)(v) end return t end
  local t = {}
  if how == 'split' then return {nn.SplitTable(2)(nn.Reshape(k, m)(v)):split(k)}
  elseif how == 'inner_split' then return {nn.SplitTable(1, 2)(nn.View(k, m):setNumInputDims(1)(v)):split(k)}
  elseif how == 'table' then local s = nn.SplitTable(2)(nn.Reshape(k, m, true)(v)) for i = 1, k do t[i] = nn.SelectTable(chance(0.3) and i - k - 1 or i)(s) end
  elseif how == 'select' then local s = nn.View(-1, k, m)(v) for i = 1, k do t[i] = nn.Select(2, chance(0.3) and i - k - 1 or i)(s) end
  else for i = 1, k do t[i] = nn.Narrow(pick{2, 2, -1}, (i - 1) * m + 1, m)(v) end end
  return t
end
local function gates(letters, x, h, n, m)
  local list, out = shuffled(letters), {}
  local k = #list
  if style.layout == 'fused' then
    local left = on('rows_left') and 1 or 0
    local v = affine(x, h, n, m, k + left)
    local parts = cut(v, k + left, m)
    if on('consumer', 0.2) then extra[#extra + 1] = pick{v, parts[int(1, k)]} end
    for i, letter in ipairs(list) do out[letter] = parts[i] end
  else
    for _, letter in ipairs(list) do out[letter] = affine(x, h, n, m, 1, letter) end
    if on('tied_gates', 1) and not style.parallel and #all_linear >= 4 then
      local a, b = all_linear[#all_linear], all_linear[#all_linear - (style.join and 1 or 2)]
      if a[2] == b[2] and a[3] == b[3] then a[1].weight, a[1].gradWeight = b[1].weight, b[1].gradWeight else made.tied_gates = nil end
    else made.tied_gates = nil end
  end
  if wanted.tied_biases and not style.join and not style.parallel and style.bias == 'both' and #all_linear >= 2 then
    local a, b = all_linear[#all_linear][1], all_linear[#all_linear - 1][1]
    if a.bias and b.bias and a.bias:size(1) == b.bias:size(1) then a.bias, a.gradBias, made.tied_biases = b.bias, b.gradBias, true end
  end
  local order = shuffled(letters)
  if #order > 1 and on('gate_sees_gate') then out[order[1]] = add(out[order[1]], nn.Sigmoid()(out[order[2]])) end
  return out
end

-- Cells: (x, {states}, n, m) -> {new states}, the last of which is the output
local build = {}
function build.lstm(x, s, n, m)
  local c, h = s[1], s[2]
  if on('dropout_x') then x = nn.Dropout(0.5)(x) end
  local peeps = kind == 'peephole' or on('gate_sees_cell')
  local v = gates({'i', 'f', 'o', 'g'}, x, h, n, m)
  local function peep(letter, value)
    if not peeps or (kind ~= 'peephole' and chance(0.5)) then return end
    local seen = nn.CMul(m)(on('peephole_scaled', 0.5) and nn.Tanh()(value) or value)
    v[letter] = add(v[letter], seen)
  end
  peep('i', c) peep('f', c)
  if on('candidate_of_cell') then v.g = add(v.g, nn.CMul(m)(c)) end
  if on('constant_forget') then v.f = nn.AddConstant(1)(v.f) end
  local i, f, g = sig(v.i), sig(v.f), tanh(v.g)
  if on('coupled', 0.5) then f = minus(i) end
  if on('swapped_states', 0.5) then f, i = i, f end
  local kept, new = mul(f, c), mul(i, g)
  if on('sum_for_product') then kept = add(f, c) end
  local function sum() return on('product_in_cell') and mul(kept, new) or add(kept, new) end
  local next_c = sum()
  if on('computed_twice', 0.5) then extra[#extra + 1] = nn.CAddTable()({kept, new}) end
  if on('clipped') then next_c = nn.Clamp(-0.5, 0.5)(next_c) end
  peep('o', next_c)
  local o = sig(v.o)
  local seen = next_c
  if on('dropout_cell') then seen = nn.Dropout(0.5)(seen) end
  if on('other_cell') then seen = c end
  seen = fixed(seen)
  if on('linear_output') then seen = pick{function() return nn.ReLU()(seen) end, function() return id(seen) end}() else seen = nn.Tanh()(seen) end
  local next_h = mul(o, seen)
  if on('consumer', 0.8) then extra[#extra + 1] = pick{i, f, o, g, kept, new, v.i, v.g} end
  if on('consumer_of_tanh') then extra[#extra + 1] = pick{nn.Tanh()(next_c), id(next_c), mul(next_c, next_h)} end
  return {next_c, next_h}
end
build.peephole = build.lstm
function build.gru(x, s, n, m) -- reset before the product
  local h = s[1]
  if on('dropout_x') then x = nn.Dropout(0.5)(x) end
  local v = gates({'r', 'z'}, x, h, n, m)
  local r, z = sig(v.r), sig(v.z)
  local reset = on('reset_of_x') and mul(z, h) or on('reset_twice') and mul(r, r, h) or mul(r, h)
  local g = tanh(affine(x, reset, n, m, 1))
  if on('consumer', 0.8) then extra[#extra + 1] = pick{r, z, g, reset, v.r} end
  return {mix(z, g, h)}
end
function build.gru_after(x, s, n, m)
  local h = s[1]
  if on('dropout_x') then x = nn.Dropout(0.5)(x) end
  local bx, bh = biases()
  local g, z, r
  local function candidate(a, b)
    if on('reset_of_x') then return tanh(add(mul(r, a), b)) end
    if on('reset_twice') then return tanh(add(a, mul(r, r, b))) end
    return tanh(add(a, mul(r, b)))
  end
  if style.layout == 'fused' and not style.join then
    local list = shuffled{'r', 'z', 'n'}
    local a, b, at = cut(linear(x, n, 3 * m, bx), 3, m), cut(linear(h, m, 3 * m, bh), 3, m), {}
    for i, letter in ipairs(list) do at[letter] = i end
    r, z = sig(add(a[at.r], b[at.r])), sig(add(a[at.z], b[at.z]))
    g = candidate(a[at.n], b[at.n])
  else
    local v = gates({'r', 'z'}, x, h, n, m)
    r, z = sig(v.r), sig(v.z)
    local a, b = linear(x, n, m, bx), linear(h, m, m, bh)
    if on('reset_outside') then g = tanh(nn.Add(m)(add(a, mul(r, b)))) else g = candidate(a, b) end
  end
  if on('consumer', 0.8) then extra[#extra + 1] = pick{r, z, g} end
  return {mix(z, g, h)}
end
function build.rnn(x, s, n, m)
  if on('dropout_x') then x = nn.Dropout(0.5)(x) end
  local v = affine(x, s[1], n, m, 1)
  if on('consumer', 0.8) then extra[#extra + 1] = v end
  return {kind == 'rnn_relu' and nn.ReLU()(fixed(v)) or tanh(v)}
end
build.rnn_relu = build.rnn
function build.highway(x, s, n, m) -- of the state, which is its input too
  local h = s[1]
  if on('projected') then h = linear(h, m, m, chance(0.5)) end
  if on('sum_carried', 0.5) then h = add(h, linear(h, m, m, false)) end
  local before = h
  if on('other_carried', 0.4) then h = nn.Tanh()(h) end
  local gate, out = linear(before, m, m, style.bias ~= 'none'), linear(before, m, m, style.bias ~= 'none')
  if on('one_bias_missing', 0.3) then out = linear(before, m, m, false) end
  if chance(0.5) then gate = nn.AddConstant(pick{-2, -1, 0.5, 3})(gate) made.bias_constant = true end
  if on('constant_forget', 0.4) then out = nn.AddConstant(1)(out) end
  if on('third_value', 0.4) then gate = add(gate, linear(s[1], m, m, false)) end
  local t, g = sig(gate), nil
  if on('in_place_relu', 0.6) then g = nn.ReLU(true)(fixed(out)) elseif chance(0.5) then g = nn.ReLU()(fixed(out)) else g = tanh(out) end
  if on('consumer', 0.8) then extra[#extra + 1] = pick{t, g, out} end
  if on('own_carry', 0.5) then return {add(mul(t, g), mul(sig(linear(before, m, m)), h))} end
  if on('tied_gates', 1) and #all_linear >= 2 then
    local a, b = all_linear[#all_linear][1], all_linear[#all_linear - 1][1]
    a.weight, a.gradWeight = b.weight, b.gradWeight
  end
  if chance(0.3) then return {mix(t, g, h)} end
  return {mix(t, h, g)}
end

local kinds = {'lstm', 'lstm', 'lstm', 'lstm', 'peephole', 'gru', 'gru', 'gru_after', 'gru_after', 'rnn', 'rnn_relu', 'highway'}
for i = 4, #arg do local list = build[arg[i]] and KINDS or ONLY list[#list + 1] = arg[i] end
if #KINDS > 0 then kinds = KINDS end

local list, tries = {}, 0
local function model()
  wanted, made, extra, all_linear, after = {}, {}, {}, {}, {}
  local count = #ONLY > 0 and int(1, 2) or pick{0, 2, 4, 6}
  for _ = 1, count do wanted[pick(#ONLY > 0 and ONLY or names)] = true end
  kind = pick(kinds)
  local layers, B = pick{1, 1, 1, 2}, pick{1, 2, 2, 3}
  local m = int(2, 6)
  local n = chance(0.35) and m or int(2, 7)
  local steps = pick{1, 1, 1, 1, 2, 3} -- unrolled
  style = {layout = pick{'fused', 'separate'}, bias = pick{'both', 'both', 'x', 'h', 'none', 'add'}, join = chance(0.25), state_first = chance(0.4), parallel = chance(0.15), cut = pick{'split', 'inner_split', 'table', 'select', 'narrow'}}
  if style.parallel and style.bias == 'add' then style.bias = 'both' end
  local w = (kind == 'lstm' or kind == 'peephole') and 2 or 1
  local nested = chance(0.25) or steps > 1
  local words = chance(0.2) and int(5, 9) or nil
  local decoder = chance(0.4) and int(2, 9) or nil
  local text = string.format('%s, %d layers, batch %d, sizes %d and %d, %d steps, %s, biases %s, join %s, parallel %s, cut %s, nested %s, states first %s', kind, layers, B, n, m, steps, style.layout, style.bias, tostring(style.join), tostring(style.parallel), style.cut, tostring(nested), '?')
  -- one step of a stack: (x, states) -> states, as nodes
  local function stack(x, states)
    local new, v, size = {}, x, n
    for L = 1, layers do
      local s = {} for k = 1, w do s[k] = states[(L - 1) * w + k] end
      if w == 2 and on('c_is_h', 0.5) then s[1] = s[2] end
      if w == 2 and size == m and on('c_is_x', 0.5) then s[1] = v end
      if size == m and on('x_is_h', 0.5) then v = s[w] end
      if size == m and on('hidden_sum', 0.5) then s[w] = add(s[w], v) end
      local out
      if nested then
        local inner_x, inner, inner_extra = id(), {}, extra
        for k = 1, w do inner[k] = id() end
        extra = {}
        local outs = build[kind](inner_x, inner, size, m)
        local all = {unpack(outs)} for _, e in ipairs(extra) do all[#all + 1] = e end
        local used = extra
        extra = inner_extra
        local ins, args = {inner_x, unpack(inner)}, {v, unpack(s)}
        if chance(0.3) then ins, args = {inner[1], inner_x, inner[2]}, {s[1], v, s[2]} end
        if kind == 'highway' then ins, args = inner, s end
        local node = nn.gModule(ins, all)(args)
        local parts = #all == 1 and {node} or {node:split(#all)}
        out = {} for k = 1, w do out[k] = parts[k] end
        for k = 1, #used do extra[#extra + 1] = parts[w + k] end
      else out = build[kind](v, s, size, m) end
      for _, e in ipairs(out) do new[#new + 1] = e end
      v, size = out[w], m
      if on('reversal') then v = nn.GradientReversal()(v) end
      if on('batch_norm_x') then local bn = nn.BatchNormalization(m) bn.running_mean:normal() bn.running_var:uniform(0.5, 2) v = bn(v) end
      if L < layers and chance(0.4) then v = nn.Dropout(0.5)(v) end
    end
    return new, v
  end
  local total = w * layers
  local inputs, xs = {}, {}
  local lead = kind ~= 'highway' and chance(0.3) -- states before inputs
  for t = 1, steps do xs[t] = id() inputs[lead and total + t or t] = xs[t] end
  local states = {}
  for k = 1, total do states[k] = id() inputs[lead and k or steps + k] = states[k] end
  if kind == 'highway' then table.remove(inputs, 1) if steps > 1 then for _ = 2, steps do table.remove(inputs, 1) end end end
  local first = kind == 'highway' and 0 or steps
  local function input(v) return words and nn.LookupTable(words, n)(v) or v end
  local outputs, top, last = {}, nil, states
  local function in_place(v) return pick{function() return nn.AddConstant(1, true)(v) end, function() return nn.MulConstant(2, true)(v) end, function() return nn.ReLU(true)(v) end, function() return nn.CAddTable(true)({v, id(v)}) end}() end
  local shown = {}
  local function alter(name, v) if v and on(name) then shown[#shown + 1] = in_place(v) end end
  local early = chance(0.5)
  if kind ~= 'highway' and not words and early then alter('in_place_x', xs[1]) end
  if early then alter('in_place_h', states[w]) if w == 2 then alter('in_place_c', states[1]) end end
  if steps == 1 then
    last, top = stack(input(xs[1]), states)
  else -- clones share their weights
    local x, inner = id(), {}
    for k = 1, total do inner[k] = id() end
    local new = stack(x, inner)
    local all = {unpack(new)} for _, e in ipairs(extra) do all[#all + 1] = e end
    local ins = {x, unpack(inner)} if kind == 'highway' then ins = inner end
    local one = nn.gModule(ins, all)
    local base = input(xs[1])
    extra = {}
    for t = 1, steps do
      local clone = one
      if t > 1 then
        if on('tied_cells', 1) then clone = one:clone() local a, b = clone:parameters(), one:parameters() if #a > 1 then a[1]:set(b[1]) end
        elseif chance(0.3) and kind ~= 'highway' and #all == total and not next(wanted) then clone = one -- the same module at each step, which overwrites its outputs
        else clone = one:clone('weight', 'bias', 'gradWeight', 'gradBias') end
      end
      local args = {t == 1 and base or input(xs[t]), unpack(last)} if kind == 'highway' then args = last end
      local node = clone(args)
      local parts = #all == 1 and {node} or {node:split(#all)}
      last = {} for k = 1, total do last[k] = parts[k] end
      for k = total + 1, #all do extra[#extra + 1] = parts[k] end
      top = last[total]
    end
  end
  if kind ~= 'highway' and not words and not early then alter('in_place_x', xs[1]) end
  if not early then alter('in_place_h', states[w]) if w == 2 then alter('in_place_c', states[1]) end end
  if on('in_place_out') then shown[#shown + 1] = in_place(pick(last)) end
  if on('clipped_output') then top = nn.Clamp(-0.3, 0.3)(top) decoder = decoder or 3 end
  for k = 1, total do outputs[k] = last[k] end
  if wanted.cell_unused and w == 2 and layers == 1 and steps == 1 and not words then made.cell_unused = true outputs[1] = id(states[1]) end
  if decoder then outputs[#outputs + 1] = nn.LogSoftMax()(nn.Linear(m, decoder)(chance(0.5) and nn.Dropout(0.5)(top) or top)) end
  if wanted.tied_outside then
    for _, e in ipairs(shuffled(all_linear)) do
      if e[2] == m then
        local layer = nn.Linear(m, e[3]) layer.weight, layer.gradWeight = e[1].weight, e[1].gradWeight
        if chance(0.4) and e[3] > 1 then layer = nn.Linear(m, e[3] - 1) layer.weight, layer.gradWeight = e[1].weight:narrow(1, 1, e[3] - 1), e[1].gradWeight:narrow(1, 1, e[3] - 1) end
        outputs[#outputs + 1] = layer(last[total]) made.tied_outside = true
        break
      end
    end
  end
  for _, e in ipairs(shown) do outputs[#outputs + 1] = e end
  for _, e in ipairs(extra) do outputs[#outputs + 1] = e end
  if on('outputs_twice') then outputs[#outputs + 1] = id(outputs[1]) outputs[#outputs + 1] = nn.MulConstant(2)(outputs[total]) end
  local net = nn.gModule(inputs, outputs)
  for _, p in ipairs(net:parameters() or {}) do p:normal(0, 0.5) end
  -- A bias whose elements are one number: some BLAS refuse such a vector (stride 0), and Lua then adds nothing.
  local takes_expanded = torch.zeros(1, 2):addr(1, torch.ones(1), torch.ones(1):expand(2)):sum() == 2
  if on('expanded') and takes_expanded then for _, e in ipairs(all_linear) do if e[1].bias then e[1].bias = torch.Tensor(1):fill(0.3):expand(e[3]) break end end end
  if on('nan', 1) then
    local list = net:parameters() local p = list and #list > 0 and pick(list)
    local harmless = kind == 'rnn_relu' or kind == 'highway' or next(made, next(made)) -- thresholds of NaN are other numbers in Lua
    if p and p:isContiguous() then local flat = p:view(-1) flat[1] = harmless and pick{1e-310, -0.0} or pick{0/0, 1/0} flat[flat:size(1)] = -0.0 end
  end
  if on('flattened', 1) then net:getParameters() end
  -- what is carried, and what is drawn
  local r = {steps = {}, carry = {}, outputs = {}, inputs = {}}
  local function x() return words and torch.Tensor(B):random(1, words) or torch.randn(B, n) end
  for t = 1, first do
    local rows, place = {}, lead and total + t or t
    for i = 1, LAST do rows[i] = x() end
    r.inputs[place] = rows[1]
    for i, row in ipairs(rows) do rows[i] = row:view(1, unpack(row:size():totable())) end r.steps[tostring(place)] = torch.cat(rows, 1)
  end
  for k = 1, total do
    local place = lead and k or first + k
    r.inputs[place] = torch.randn(B, m):mul(0.5) r.carry[tostring(place)] = #outputs == 1 and '' or tostring(k)
  end
  if #r.inputs == 1 then r.inputs = r.inputs[1] r.carry = {[''] = r.carry['1']} end
  net:clearState()
  for _, q in ipairs(net:listModules()) do q.gradWeight, q.gradBias = nil, nil end
  for _, q in ipairs(net:listModules()) do
    for _, node in ipairs(q.forwardnodes or {}) do
      local said = node.data.annotations
      said._debugLabel = said._debugLabel and said._debugLabel:gsub('%[[^%]]*/', '[') -- no folders of this machine
    end
  end
  net:evaluate()
  local ran = tries % 3 == 0 -- then the file has the last input of each graph
  if ran then net:forward(copy(r.inputs)) end
  r.model = net:clone()
  local now = r.inputs
  r.inputs = copy(r.inputs)
  for t = 1, LAST do
    if t > 1 then for path, rows in pairs(r.steps) do if torch.isTensor(now) then now = rows[t]:clone() else set(now, path, rows[t]:clone()) end end end
    local out = copy(net:forward(copy(now)))
    for _, e in ipairs(torch.isTensor(out) and {out} or out) do assert(torch.isTensor(e)) end
    r.outputs[t] = out
    for to, from in pairs(r.carry) do if to == '' then now = at(out, from) else set(now, to, copy(at(out, from))) end end
  end
  r.text, r.changes = (text:gsub('%?', tostring(lead))), {}
  for name in pairs(made) do r.changes[#r.changes + 1] = name end table.sort(r.changes)
  r.expected = 'same'
  for name in pairs(made) do
    local is = changes[name] or 'same'
    if is == 'not' or r.expected == 'same' then r.expected = is end
  end
  -- nn.Reshape(4, 4) cuts what has no batch otherwise
  local gates = (kind == 'lstm' or kind == 'peephole') and 4 or 3
  if (m == gates or m == 2) and r.expected == 'same' and style.layout == 'fused' and style.cut == 'split' then r.expected = 'may' end
  -- what the file does not show: how wide each value of a joined one is, and which input of a simple cell is its state
  local simple = kind == 'rnn' or kind == 'rnn_relu'
  local unknown = not ran and style.join and n ~= m and (w == 2 or simple) and (nested or not words)
  if (unknown or (simple and (lead or nested))) and r.expected == 'same' then r.expected = 'may' end
  r.kind, r.cells = kind, layers
  return r
end

while #list < COUNT do
  tries = tries + 1
  local ok, r = pcall(model)
  if ok then list[#list + 1] = r elseif os.getenv('VERBOSE') then print(r) end
  if tries > 4 * COUNT + 20 then error('too many fail') end
end
torch.save(OUT, list)
print(#list .. ' of ' .. tries)
