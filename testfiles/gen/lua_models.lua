-- Runs the models that lua_models.py saved, in stock nn and nngraph, and records what they compute.
--   th lua_models.lua WORK OUT [FIRST]
-- Each network is OUT/NAME.t7, the operations are OUT/operations_N.t7, networks in other styles OUT/styles_N.t7: name -> {input=, gradOutput=, weights=, output=,
-- gradInput=, gradients=}; weights and gradients by key of the PyTorch state dict.
require 'nn'
require 'nngraph'

local work, out = arg[1], arg[2]
dofile(work .. '/layers.lua')

local function gradients(model, weights)
   local found = {}
   for _, module in ipairs(model:listModules()) do
      for field, entry in pairs(module.t7bridge or {}) do
         local slope = field == 'weight' and module.gradWeight or field == 'bias' and module.gradBias
         if slope then
            local whole = found[entry.key] or torch.FloatTensor(torch.LongStorage(#entry.size > 0 and entry.size or {1})):zero()
            if entry.transposed then
               whole:copy(slope:t())
            else -- cells of an unrolled layer share one gradient, so each copies the same
               whole:view(-1):narrow(1, (entry.start or 0) + 1, slope:nElement()):copy(slope)
            end
            found[entry.key] = whole
         end
      end
   end
   return found
end

local function run(name)
   local model, case = torch.load(work .. '/' .. name .. '.t7'), torch.load(work .. '/' .. name .. '.case.t7')
   model:zeroGradParameters()
   local copied = nn.utils.recursiveCopy
   case.output = select(2, copied(nil, model:forward(case.input)))
   local ran, slopes = pcall(function() return model:backward(case.input, case.gradOutput) end)
   if ran then
      case.gradInput = select(2, copied(nil, slopes))
      case.gradients = gradients(model, case.weights)
   else
      assert(tostring(slopes):find('backprop only defined while training'), slopes)
   end
   return case
end

local files = {op = 'operations', style = 'styles'}
local first = tonumber(arg[3]) or 1
local parts = {op = {cases = {}, size = 0, number = first}, style = {cases = {}, size = 0, number = first}}

local function finish(kind)
   local part = parts[kind]
   if part.size == 0 then return end
   torch.save(out .. '/' .. files[kind] .. '_' .. part.number .. '.t7', part.cases)
   parts[kind] = {cases = {}, size = 0, number = part.number + 1}
end

for name in io.lines(work .. '/names.txt') do
   local case, kind = run(name), name:match('^(%a+)_')
   if not files[kind] then
      torch.save(out .. '/' .. name .. '.t7', case)
   else
      local bytes = #torch.serialize(case)
      if parts[kind].size + bytes > 60000 then finish(kind) end
      parts[kind].cases[name:sub(#kind + 2)] = case
      parts[kind].size = parts[kind].size + bytes
   end
end
finish('op')
finish('style')
