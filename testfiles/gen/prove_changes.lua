-- prove_changes.lua OUT.tsv FILE.t7 …: changes of one weight or one option that show in what Lua Torch computes.
-- Each layer of a recorded model is run on its recorded input, before and after. A row: file, path, class, field, index of
-- the weight (from 0, row by row; empty for options), new value, largest change of an output in units of 1e-5 + 1e-4 |output|.
require 'nn'; require 'nngraph'
local out = io.open(assert(arg[1]), 'w')
torch.setnumthreads(1)
local function copy(v) if torch.isTensor(v) then return v:clone() end; local o = {}; for i, e in ipairs(v) do o[i] = copy(e) end; return o end
local function leaves(v, o) o = o or {}; if torch.isTensor(v) then o[#o + 1] = v else for _, e in ipairs(v) do leaves(e, o) end end; return o end
local options = {eps = function(v) return v > 1e-7 and v * 10 or 1e-3 end, padW = function(v) return v + 1 end, padH = function(v) return v + 1 end, dW = function(v) return v + 1 end,
   dH = function(v) return v + 1 end, ceil_mode = function(v) return not v end, count_include_pad = function(v) return not v end, negval = function(v) return v * 1.1 + .01 end,
   alpha = function(v) return v * 1.1 end, threshold = function(v) return v + .1 end, val = function(v) return v - .1 end, constant_scalar = function(v) return v + .01 end, p = function(v) return v + .1 end,
   min_val = function(v) return v + .4 end, max_val = function(v) return v - .4 end, k = function(v) return v + 1 end, beta = function(v) return v * 1.1 end, size = function(v) return v + 2 end,
   v2 = function(v) return not v end, train = function(v) return not v end, adjW = function(v) return v + 1 end, dilationW = function(v) return v + 1 end, pow = function(v) return v + 1 end,
   dimension = function(v) return v == 1 and 2 or 1 end, index = function(v) return v == 1 and 2 or 1 end, lambda = function(v) return v * 1.1 end, lower = function(v) return v * 1.1 end}
local names = {}; for name in pairs(options) do names[#names + 1] = name end; table.sort(names)
local weights = {'weight', 'bias', 'running_mean', 'running_var'}
local function run(m, input) torch.manualSeed(7); local ok, y = pcall(function() return copy(m:updateOutput(copy(input))) end); return ok and leaves(y) or nil end
local function try(file, path, m, input, field, change)
   local before, after = m:clone(), m:clone()
   local index, value = change(after)
   local a, b = run(before, input), run(after, input)
   if not a or not b or #a ~= #b then return end
   local worst = 0
   for i, t in ipairs(a) do
      if not t:isSameSizeAs(b[i]) then worst = math.huge
      elseif t:nElement() > 0 then local ratio = (t:double() - b[i]:double()):abs():cdiv(t:double():abs():mul(1e-4):add(1e-5)):max(); if ratio > worst then worst = ratio end end
   end
   if worst > 1 then out:write(table.concat({file, path, torch.typename(m), field, index, tostring(value), string.format('%.3g', worst)}, '\t'), '\n') end
end
local function leaf(file, path, m, input)
   if not input or (torch.isTensor(input) and input:nElement() == 0) or not run(m:clone(), input) then return end
   local having = {}; for _, name in ipairs(weights) do if torch.isTensor(m[name]) and m[name]:nElement() > 0 then having[#having + 1] = name end end
   if #having > 0 then
      local name = having[math.random(#having)]
      try(file, path, m, input, name, function(e)
         local t = e[name]; local place = math.random(t:nElement()); local at, rest = t, place - 1
         for d = 1, t:dim() do local count = 1; for f = d + 1, t:dim() do count = count * t:size(f) end; at = at:narrow(d, math.floor(rest / count) + 1, 1); rest = rest % count end
         local old = at:sum(); local new = math.random(2) == 1 and old * 1.001 or old + 1e-3 * math.max(t:max(), -t:min())
         at:fill(new); return place - 1, string.format('%.9g', at:sum())
      end)
   end
   local found = {}; for _, name in ipairs(names) do if type(m[name]) == 'number' or type(m[name]) == 'boolean' then found[#found + 1] = name end end
   if #found > 0 then
      local name = found[math.random(#found)]
      try(file, path, m, input, name, function(e) e[name] = options[name](e[name]); return '', e[name] end)
   end
end
local function go(file, path, m, input)
   local kind = torch.typename(m)
   if kind == 'nn.gModule' then
      for _, node in ipairs(m.forwardnodes) do if node.data.module then
         local place; for i, e in ipairs(m.modules) do if e == node.data.module then place = i end end
         local given = node.data.input; if place and given then go(file, path..'.modules['..place..']', node.data.module, #given == 1 and given[1] or given) end
      end end
   elseif kind == 'nn.Sequential' then
      for i, e in ipairs(m.modules) do go(file, path..'.modules['..i..']', e, input); input = e.output end
   elseif kind == 'nn.ConcatTable' or kind == 'nn.Concat' or kind == 'nn.DepthConcat' then for i, e in ipairs(m.modules) do go(file, path..'.modules['..i..']', e, input) end
   elseif kind == 'nn.ParallelTable' then for i, e in ipairs(m.modules) do go(file, path..'.modules['..i..']', e, input and input[i]) end
   elseif not m.modules then leaf(file, path, m, input) end
end
for i = 2, #arg do
   math.randomseed(i)
   local m = torch.load(arg[i]); local path = 'root'
   if not torch.typename(m) then m = m.model; path = 'root.model' end
   if m then go(arg[i]:match('[^/]+$'), path, m) end
end
out:close()
